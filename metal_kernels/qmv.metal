// y[m][n] = sum over k of w[n][k] * x[m][k], for up to 16 rows of x a tile.
// w: (N, bytes of a row), x: (M, K), y: (M, N). Grid: (32, SIMDGROUPS * tiles of N, tiles of M).
#include "qmv.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup ushort staged[SIMDGROUPS * OUTPUTS * Stage<Codec>::halves];

const int lane = thread_index_in_simdgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int all_outputs = w_shape[0];
const int all_rows = x_shape[0];
const int columns = x_shape[1];
const int output = (threadgroup_position_in_grid.y * SIMDGROUPS + simdgroup) * OUTPUTS;
const int row = threadgroup_position_in_grid.z * ROWS;
const int present = metal::clamp(all_outputs - output, 0, OUTPUTS);
const int rows = metal::min(all_rows - row, ROWS);

Qmv<Codec, T, ROWS, OUTPUTS> product;
product.run(w + ulong(output) * w_shape[1], x + ulong(row) * columns,
            staged + simdgroup * OUTPUTS * Stage<Codec>::halves, columns, present, rows, lane);
for (int m = 0; m < ROWS; m++)
  for (int n = 0; n < OUTPUTS; n++)
    if (m < rows && n < present) {
      const float sum = metal::simd_sum(product.sum[m][n]);
      if (lane == (m * OUTPUTS + n) % 32) y[ulong(row + m) * all_outputs + output + n] = T(sum);
    }
