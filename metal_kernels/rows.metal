// y[t] = row tokens[t] of w, decoded. A simdgroup takes 256 weights of a row.
// w: (N, bytes of a row), tokens: (T,), y: (T, K). Grid: (32, T, steps of 256 weights).
#include "stage.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup ushort staged[Stage<Codec>::halves];

const int lane = thread_index_in_simdgroup;
const int token = threadgroup_position_in_grid.y;
const int start = threadgroup_position_in_grid.z * Stage<Codec>::weights;
const int columns = w_shape[1] / Codec::bytes * Codec::weights;

Stage<Codec>::load(staged, w + ulong(tokens[token]) * w_shape[1], 1, columns, start, lane, 32);
metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
if (start + lane * 8 < columns) {
  Chunk<Codec> weights;
  weights.unpack((const threadgroup uint8_t*)staged, lane);
  for (int j = 0; j < 8; j++) y[ulong(token) * columns + start + lane * 8 + j] = T(weights.weight(j));
}
