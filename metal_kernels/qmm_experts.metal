// As qmv_experts, for many rows: tiles of ROWS by 32, one after the other for each expert that a tile's rows have.
// w: (E, N, bytes of a row), x: (M, K), experts: (M,) int32, y: (M, N). Grid: (128 * tiles of N, tiles of M, 1).
#include "qmm.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup float left[ROWS * qmm::stride];
threadgroup float right[qmm::depth * qmm::stride];
threadgroup ushort staged[qmm::outputs * qmm::Step<Codec>::halves];

const int index = thread_index_in_threadgroup;
const int all_outputs = w_shape[1];
const int columns = x_shape[1];
const int output = threadgroup_position_in_grid.x * qmm::outputs;
const int row = threadgroup_position_in_grid.y * ROWS;
const int present = metal::min(all_outputs - output, int(qmm::outputs));
const int end = metal::min(x_shape[0], row + ROWS);

for (int first = row; first < end;) {
  const int expert = experts[first];
  int next = first + 1;
  while (next < end && experts[next] == expert) next++;
  const device uint8_t* matrix = w + (ulong(expert) * all_outputs + output) * w_shape[2];
  qmm::Tile<Codec, ROWS> tile;
  tile.run(matrix, x + ulong(first) * columns, left, right, staged, columns, present, next - first, index,
           simdgroup_index_in_threadgroup);
  for (int at = index; at < (next - first) * qmm::outputs; at += qmm::threads) {
    const int n = at % qmm::outputs;
    const ulong place = ulong(first + at / qmm::outputs) * all_outputs + output + n;
    if (n < present) y[place] = T(left[at / qmm::outputs * qmm::stride + n]);
  }
  first = next;
}
