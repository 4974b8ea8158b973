// y[m][n] = residual[m][n] + bias[n] + sum over k of w[n][k] * norm(x[m])[k], for up to 16 rows of x a tile.
// w: (N, bytes of a row), x: (M, K), gain: (K,), bias: (N,), residual, y: (M, N). What is not wanted may be of any size.
// Grid: (32, SIMDGROUPS * tiles of N, tiles of M).
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
product.run(w + ulong(output) * w_shape[1], x + ulong(row) * columns, gain,
            staged + simdgroup * OUTPUTS * Stage<Codec>::halves, columns, present, rows, lane, has_norm);
for (int m = 0; m < ROWS; m++)
  for (int n = 0; n < OUTPUTS; n++)
    if (m < rows && n < present) {
      const float sum = product.result(m, n, columns, eps, has_norm);
      const ulong at = ulong(row + m) * all_outputs + output + n;
      if (lane == (m * OUTPUTS + n) % 32) {
        const float biased = has_bias ? sum + bias[output + n] : sum;
        y[at] = T(has_residual ? float(residual[at]) + biased : biased);
      }
    }
