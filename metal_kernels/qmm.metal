// y[m][n] = sum over k of w[n][k] * x[m][k], for many rows.
// w: (N, bytes of a row), x: (M, K), y: (M, N). Grid: (128 * tiles of N, tiles of M, 1).
#include "qmm.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup float left[qmm::tile * qmm::stride];
threadgroup float right[qmm::tile * qmm::stride];

const int index = thread_index_in_threadgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int all_outputs = w_shape[0];
const int columns = x_shape[1];
const int output = threadgroup_position_in_grid.x * qmm::tile;
const int row = threadgroup_position_in_grid.y * qmm::tile;
const int outputs = metal::min(all_outputs - output, int(qmm::tile));
const int rows = metal::min(x_shape[0] - row, int(qmm::tile));
const int row_part = simdgroup / 2 * 16;
const int output_part = simdgroup % 2 * 16;

qmm::Quarter quarter;
quarter.clear();
for (int k = 0; k < columns; k += qmm::tile) {
  qmm::load_left(left, x + ulong(row) * columns, rows, columns, k, index);
  qmm::load_right<Codec>(right, w + ulong(output) * w_shape[1], outputs, columns, k, index);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  quarter.multiply(left + row_part * qmm::stride, right + output_part);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
quarter.store(left + row_part * qmm::stride + output_part);
metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
for (int at = index; at < qmm::tile * qmm::tile; at += qmm::threads) {
  const int m = at / qmm::tile;
  const int n = at % qmm::tile;
  if (m < rows && n < outputs) y[ulong(row + m) * all_outputs + output + n] = T(left[m * qmm::stride + n]);
}
