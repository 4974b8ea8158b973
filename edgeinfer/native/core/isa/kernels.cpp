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

// The first of the largest; NaNs never win.
static int argmax(const float* values, int count) {
  int best = 0, i = 0;
  float most = -__builtin_inff();
  for (; i + 4 * W <= count; i += 4 * W) {
    const F a = max(load<F>(values + i), load<F>(values + i + W));
    const F b = max(load<F>(values + i + 2 * W), load<F>(values + i + 3 * W));
    const F peak = max(a, b);
    const I above = (peak > all(most)) | (peak != peak);
    int32_t any = 0;
    for (int lane = 0; lane < W; lane++) any |= above[lane];
    for (int j = i; any && j < i + 4 * W; j++)
      if (values[j] > most) most = values[best = j];
  }
  for (; i < count; i++)
    if (values[i] > most) most = values[best = i];
  return best;
}

}  // namespace edgeinfer::ISA

namespace edgeinfer {
#define NAME_OF(isa) kernels_##isa
#define NAME(isa) NAME_OF(isa)
extern const Kernels NAME(ISA);
const Kernels NAME(ISA) = {
    TEXT(ISA),         ISA::linear_prepare, ISA::linear_unit, ISA::linear_post_norm, ISA::append,
    ISA::attend_chunk, ISA::attend_merge,   ISA::attend_tile, ISA::argmax,
};
}  // namespace edgeinfer
