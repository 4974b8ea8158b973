// How the specs of the operations become calls of the core: for single operations and for whole programs.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "../core/scratch.h"
#include "primitives.h"

namespace edgeinfer::mlx_ops {

inline const float* data_of(const Floats& floats) { return floats ? floats->data() : nullptr; }

inline void expect(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

void expect_rows(const mx::array& x, int columns, const char* message);
void expect_heads(const HeadsSpec& spec, const mx::array& qkv, const mx::array& table);
void expect_inside(const Rows& rows, const mx::array& qkv);
// Raises std::invalid_argument unless the rows are all of the call and the chain takes what attention gives.
mx::Shape attended_shape(const HeadsSpec& spec, const Chain& chain, const mx::array& qkv, const std::vector<Rows>& rows,
                         bool has_residual);
void add_residual(std::vector<mx::array>& inputs, const std::optional<mx::array>& residual, const mx::Shape& shape);

// What lies between the maps of a chain belongs to the thread.
inline void run_chain(const Chain& chain, const float* x, int rows, const float* residual, float* out) {
  thread_local Scratch between[2];
  for (size_t i = 0; i < chain.size(); i++) {
    const LinearSpec& spec = *chain[i];
    const bool last = i + 1 == chain.size();
    LinearCall call = spec.call();
    call.x = x;
    call.rows = rows;
    call.residual = last ? residual : nullptr;
    call.out = last ? out : between[i % 2].get<float>(size_t(rows) * spec.columns_out());
    edgeinfer::linear(call);
    x = call.out;
  }
}

// Attention, which `mix` does to where it is told, and the maps in `chain` on its result.
template <class Mix>
void run_heads(const HeadsSpec& spec, const Chain& chain, int rows, const float* residual, float* out, const Mix& mix) {
  thread_local Scratch scratch;
  if (chain.empty()) return mix(out);
  float* mixed = scratch.get<float>(size_t(rows) * spec.heads * spec.head_dim);
  mix(mixed);
  run_chain(chain, mixed, rows, residual, out);
}

// Puts the result where the residual lies: only the last map writes there, and reads each number before it does.
inline bool may_take_residual(const Chain& chain) { return !chain.back()->post_norm; }

inline HeadsView heads_view(const HeadsSpec& spec, const float* qkv, const float* table, int pairs) {
  return {qkv,      spec.heads, spec.kv_heads, spec.head_dim, data_of(spec.q_norm), data_of(spec.k_norm),
          spec.eps, {table, pairs, spec.interleaved}};
}

inline AttendCall attend_call(const HeadsSpec& spec, const HeadsView& heads, float* out) {
  return {heads, spec.scale, spec.softcap, spec.window, out, data_of(spec.sinks)};
}

inline HeadsView heads_view(const HeadsSpec& spec, const mx::array& qkv, const mx::array& table) {
  return heads_view(spec, qkv.data<float>(), table.data<float>(), table.shape(2));
}

// A cache is one array (2, kv heads, capacity, head_dim): keys in their own order (calls.h), then values.
inline CacheView cache_view(const mx::array& cache) {
  uint16_t* memory = const_cast<uint16_t*>(reinterpret_cast<const uint16_t*>(cache.data<mx::float16_t>()));
  return {memory, memory + cache.size() / 2, cache.shape(2)};
}

inline void copy_positions(const CacheView& from, const CacheView& to, const HeadsSpec& spec, int count) {
  if (from.keys == to.keys) return;
  for (int head = 0; head < spec.kv_heads; head++) {
    const int64_t source = int64_t(head) * from.capacity * spec.head_dim;
    const int64_t target = int64_t(head) * to.capacity * spec.head_dim;
    const int64_t keys = int64_t(count + STRIP - 1) / STRIP * STRIP * spec.head_dim;
    std::copy_n(from.keys + source, keys, to.keys + target);
    std::copy_n(from.values + source, int64_t(count) * spec.head_dim, to.values + target);
  }
}

inline void expect_cache(const HeadsSpec& spec, const mx::array& cache, int capacity) {
  expect(cache.dtype() == mx::float16 && cache.ndim() == 4 && cache.shape(0) == 2 && cache.shape(1) == spec.kv_heads &&
             cache.shape(2) % CHUNK == 0 && cache.shape(2) >= capacity && cache.shape(3) == spec.head_dim,
         "cache: expected what append() makes, with room for every position");
}

// Positions of a cache that has to hold `needed` and has `capacity` (0: none yet). It grows by a quarter at least, so
// that a long reply does not copy its cache every 256 tokens.
inline int capacity_for(int needed, int capacity) {
  if (needed <= capacity) return capacity;
  const int64_t wanted = capacity ? std::max<int64_t>(needed, int64_t(needed) * 5 / 4) : needed;
  return int((wanted + CHUNK - 1) / CHUNK * CHUNK);
}

}  // namespace edgeinfer::mlx_ops
