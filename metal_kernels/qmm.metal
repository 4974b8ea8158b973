// y[m][n] = sum over k of w[n][k] * x[m][k], for many rows.
// w: (N, bytes of a row), x: (M, K), y: (M, N). Grid: (128 * tiles of N, tiles of M, 1).
#include "qmm.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup float left[ROWS * qmm::stride];
threadgroup float right[qmm::depth * qmm::stride];
threadgroup ushort staged[qmm::outputs * qmm::Step<Codec>::halves];

const int index = thread_index_in_threadgroup;
const int all_outputs = w_shape[0];
const int columns = x_shape[1];
const int output = threadgroup_position_in_grid.x * qmm::outputs;
const int row = threadgroup_position_in_grid.y * ROWS;
const int present = metal::min(all_outputs - output, int(qmm::outputs));
const int rows = metal::min(x_shape[0] - row, ROWS);

qmm::Tile<Codec, ROWS> tile;
tile.run(w + ulong(output) * w_shape[1], x + ulong(row) * columns, left, right, staged, columns, present, rows, index,
         simdgroup_index_in_threadgroup);
for (int at = index; at < ROWS * qmm::outputs; at += qmm::threads) {
  const int m = at / qmm::outputs;
  const int n = at % qmm::outputs;
  if (m < rows && n < present) y[ulong(row + m) * all_outputs + output + n] = T(left[m * qmm::stride + n]);
}
