// One instruction set's table of kernels. Compiled once for each, with -DISA=<namespace> and its flags.
#include "../kernels.h"

#include "attend.h"
#include "linear.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

namespace edgeinfer::ISA {

INLINE void partials_at(float* memory, int dim, Partial out[QUERY_TILE]) {
  for (int q = 0; q < QUERY_TILE; q++) out[q] = {memory[q * (dim + 2)], memory[q * (dim + 2) + 1], memory + q * (dim + 2) + 2};
}

static void attend_chunk(const AttendCall& call, const SequenceView& sequence, int kv_head, int first, int chunk,
                         float* memory) {
  Tile6 tile;
  load_tile(call, sequence, kv_head, first, &tile);
  const int dim = call.in.head_dim;
  Partial partials[QUERY_TILE];
  partials_at(memory, dim, partials);
  attend_chunk_tile(call, sequence.cache, kv_head, tile, chunk * CHUNK, partials);
  for (int q = 0; q < tile.count; q++) {
    memory[q * (dim + 2)] = partials[q].most;
    memory[q * (dim + 2) + 1] = partials[q].total;
  }
}

static void attend_merge(const AttendCall& call, const SequenceView& sequence, int kv_head, int first, int chunks,
                         float* memory) {
  const int dim = call.in.head_dim, group = call.in.heads / call.in.kv_heads;
  const int left = sequence.rows * group - first;
  Partial merged[QUERY_TILE], next[QUERY_TILE];
  partials_at(memory, dim, merged);
  for (int chunk = 1; chunk < chunks; chunk++) {
    partials_at(memory + (int64_t)chunk * QUERY_TILE * (dim + 2), dim, next);
    for (int q = 0; q < QUERY_TILE && q < left; q++) merge(merged + q, next[q], dim);
  }
  for (int q = 0; q < QUERY_TILE && q < left; q++) finish(call, sequence, kv_head, first + q, merged[q]);
}

static void attend_tile(const AttendCall& call, const SequenceView& sequence, int kv_head, int first) {
  alignas(64) float memory[2][QUERY_TILE][MAX_HEAD_DIM];
  Tile6 tile;
  load_tile(call, sequence, kv_head, first, &tile);
  int from = tile.from[0], to = tile.to[tile.count - 1];
  Partial merged[QUERY_TILE], next[QUERY_TILE];
  for (int q = 0; q < QUERY_TILE; q++) {
    merged[q].mixed = memory[0][q];
    next[q].mixed = memory[1][q];
  }
  const int first_chunk = from / CHUNK;
  for (int chunk = first_chunk; chunk * CHUNK < to; chunk++) {
    attend_chunk_tile(call, sequence.cache, kv_head, tile, chunk * CHUNK, chunk == first_chunk ? merged : next);
    for (int q = 0; chunk > first_chunk && q < tile.count; q++) merge(merged + q, next[q], call.in.head_dim);
  }
  for (int q = 0; q < tile.count; q++) finish(call, sequence, kv_head, first + q, merged[q]);
}

INLINE bool any(I lanes) {
  int32_t found = 0;
  for (int lane = 0; lane < W; lane++) found |= lanes[lane];
  return found;
}

// The first of the largest; -1 if that is no finite number, or any value is a NaN.
static int argmax(const float* values, int count) {
  F peaks[4];
  I nans = {};
  for (F& each : peaks) each = all(-__builtin_inff());
  int i = 0;
  for (; i + 4 * W <= count; i += 4 * W)
    UNROLL for (int v = 0; v < 4; v++) {
      const F x = load<F>(values + i + v * W);
      peaks[v] = max(x, peaks[v]);
      nans |= x != x;
    }
  const F lanes = max(max(peaks[0], peaks[1]), max(peaks[2], peaks[3]));
  float most = -__builtin_inff();
  bool nan = any(nans);
  for (int lane = 0; lane < W; lane++) most = lanes[lane] > most ? lanes[lane] : most;
  for (; i < count; i++) {
    most = values[i] > most ? values[i] : most;
    nan |= values[i] != values[i];
  }
  if (nan || !(__builtin_fabsf(most) <= 3.402823466e38f)) return -1;
  for (i = 0; i + W <= count && !any(load<F>(values + i) == all(most));) i += W;
  while (values[i] != most) i++;
  return i;
}

}  // namespace edgeinfer::ISA

namespace edgeinfer {
namespace ISA {
extern const SealedKernels sealed_kernels;
}
#define NAME_OF(isa) kernels_##isa
#define NAME(isa) NAME_OF(isa)
extern const Kernels NAME(ISA);
const Kernels NAME(ISA) = {
    TEXT(ISA),         ISA::linear_prepare, ISA::linear_unit, ISA::linear_post_norm, ISA::append,
    ISA::attend_chunk, ISA::attend_merge,   ISA::attend_tile, ISA::argmax,
    &ISA::sealed_kernels,
};
}  // namespace edgeinfer
