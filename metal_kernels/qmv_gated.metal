// y[m][n] = activation(w[n] . norm(x[m])) * (up[n] . norm(x[m])), for up to 16 rows of x a tile.
// w, up: (N, bytes of a row), x: (M, K), gain: (K,), y: (M, N). Grid: (32, SIMDGROUPS * tiles of N, tiles of M).
#include "activation.h"
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
const ulong matrix = ulong(output) * w_shape[1];
threadgroup ushort* mine = staged + simdgroup * OUTPUTS * Stage<Codec>::halves;

Qmv<Codec, T, ROWS, OUTPUTS> gate;
Qmv<Codec, T, ROWS, OUTPUTS> other;
gate.run(w + matrix, x + ulong(row) * columns, gain, mine, columns, present, rows, lane, has_norm);
other.run(up + matrix, x + ulong(row) * columns, gain, mine, columns, present, rows, lane, has_norm);
for (int m = 0; m < ROWS; m++)
  for (int n = 0; n < OUTPUTS; n++)
    if (m < rows && n < present) {
      const float gated = activation::of<ACTIVATION>(gate.result(m, n, columns, eps, has_norm));
      const float value = gated * other.result(m, n, columns, eps, has_norm);
      if (lane == (m * OUTPUTS + n) % 32) y[ulong(row + m) * all_outputs + output + n] = T(value);
    }
