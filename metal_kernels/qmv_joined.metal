// Three matrices on the same x in one launch, their results side by side: queries, keys and values.
// y[m][n] = residual[m][n] + bias[n] + w[n] . norm(x[m]), n running through the rows of w, then of second, then of third,
// which may have a codec of its own. For up to 16 rows of x a tile. w, second, third: (N, bytes of a row) each.
// x: (M, K), gain: (K,), bias, residual, y as in qmv. Grid: (32, SIMDGROUPS * tiles of all matrices, tiles of M).
#include "qmv.h"

using First = typename codecs::Row<CODEC>::Codec;
using Last = typename codecs::Row<LAST>::Codec;
constexpr int halves = Stage<First>::halves > Stage<Last>::halves ? Stage<First>::halves : Stage<Last>::halves;
threadgroup ushort staged[SIMDGROUPS * OUTPUTS * halves];

const int lane = thread_index_in_simdgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int columns = x_shape[1];
const int tile = threadgroup_position_in_grid.y * SIMDGROUPS + simdgroup;
const int row = threadgroup_position_in_grid.z * ROWS;
const int rows = metal::min(x_shape[0] - row, ROWS);
const int second_tile = (w_shape[0] + OUTPUTS - 1) / OUTPUTS;
const int third_tile = second_tile + (second_shape[0] + OUTPUTS - 1) / OUTPUTS;

const bool is_third = tile >= third_tile;
const bool is_second = tile >= second_tile && !is_third;
const device uint8_t* matrix = is_third ? third : is_second ? second : w;
const int matrix_rows = is_third ? third_shape[0] : is_second ? second_shape[0] : w_shape[0];
const int row_bytes = is_third ? third_shape[1] : w_shape[1];
const int before = is_third ? w_shape[0] + second_shape[0] : is_second ? w_shape[0] : 0;
const int output = (tile - (is_third ? third_tile : is_second ? second_tile : 0)) * OUTPUTS;
const int present = metal::clamp(matrix_rows - output, 0, OUTPUTS);
const int all_outputs = w_shape[0] + second_shape[0] + third_shape[0];
const device uint8_t* from = matrix + ulong(output) * row_bytes;
threadgroup ushort* mine = staged + simdgroup * OUTPUTS * halves;

float sum[ROWS][OUTPUTS];
if (is_third) {
  Qmv<Last, T, ROWS, OUTPUTS> product;
  product.run(from, x + ulong(row) * columns, gain, mine, columns, present, rows, lane, has_norm);
  for (int m = 0; m < ROWS; m++)
    for (int n = 0; n < OUTPUTS; n++) sum[m][n] = product.result(m, n, columns, eps, has_norm);
} else {
  Qmv<First, T, ROWS, OUTPUTS> product;
  product.run(from, x + ulong(row) * columns, gain, mine, columns, present, rows, lane, has_norm);
  for (int m = 0; m < ROWS; m++)
    for (int n = 0; n < OUTPUTS; n++) sum[m][n] = product.result(m, n, columns, eps, has_norm);
}
for (int m = 0; m < ROWS; m++)
  for (int n = 0; n < OUTPUTS; n++)
    if (m < rows && n < present && lane == (m * OUTPUTS + n) % 32) {
      const ulong at = ulong(row + m) * all_outputs + before + output + n;
      const float biased = has_bias ? sum[m][n] + bias[before + output + n] : sum[m][n];
      y[at] = T(has_residual ? float(residual[at]) + biased : biased);
    }
