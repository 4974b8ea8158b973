// As qmv_experts, for many rows: tiles of 32 by 32, one after the other for each expert that a tile's rows have.
// w: (E, N, bytes of a row), x: (M, K), experts: (M,) int32, y: (M, N). Grid: (128 * tiles of N, tiles of M, 1).
#include "qmm.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup float left[qmm::tile * qmm::stride];
threadgroup float right[qmm::tile * qmm::stride];

const int index = thread_index_in_threadgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int all_outputs = w_shape[1];
const int columns = x_shape[1];
const int output = threadgroup_position_in_grid.x * qmm::tile;
const int row = threadgroup_position_in_grid.y * qmm::tile;
const int outputs = metal::min(all_outputs - output, int(qmm::tile));
const int end = metal::min(x_shape[0], row + int(qmm::tile));
const int row_part = simdgroup / 2 * 16;
const int output_part = simdgroup % 2 * 16;

for (int first = row; first < end;) {
  const int expert = experts[first];
  int next = first + 1;
  while (next < end && experts[next] == expert) next++;
  const device uint8_t* matrix = w + (ulong(expert) * all_outputs + output) * w_shape[2];
  qmm::Quarter quarter;
  quarter.clear();
  for (int k = 0; k < columns; k += qmm::tile) {
    qmm::load_left(left, x + ulong(first) * columns, next - first, columns, k, index);
    qmm::load_right<Codec>(right, matrix, outputs, columns, k, index);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    quarter.multiply(left + row_part * qmm::stride, right + output_part);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  quarter.store(left + row_part * qmm::stride + output_part);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int at = index; at < (next - first) * qmm::tile; at += qmm::threads) {
    const int n = at % qmm::tile;
    const ulong place = ulong(first + at / qmm::tile) * all_outputs + output + n;
    if (n < outputs) y[place] = T(left[at / qmm::tile * qmm::stride + n]);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  first = next;
}
