// y[m][n] = sum over k of w[experts[m]][n][k] * x[m][k]. Rows of one expert that follow one another read it once for
// up to 16 of them. w: (E, N, bytes of a row), x: (M, K), experts: (M,) int32, y: (M, N).
// Grid: (32, SIMDGROUPS * tiles of N, tiles of M).
#include "qmv.h"

using Codec = typename codecs::Row<CODEC>::Codec;
threadgroup ushort staged[SIMDGROUPS * OUTPUTS * Stage<Codec>::halves];

const int lane = thread_index_in_simdgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int all_outputs = w_shape[1];
const int columns = x_shape[1];
const int output = (threadgroup_position_in_grid.y * SIMDGROUPS + simdgroup) * OUTPUTS;
const int row = threadgroup_position_in_grid.z * ROWS;
const int present = metal::clamp(all_outputs - output, 0, OUTPUTS);
const int end = metal::min(x_shape[0], row + ROWS);

for (int first = row; first < end;) {
  const int expert = experts[first];
  int next = first + 1;
  while (next < end && experts[next] == expert) next++;
  Qmv<Codec, T, ROWS, OUTPUTS> product;
  // Without a norm the pointer to its gain is not followed.
  product.run(w + (ulong(expert) * all_outputs + output) * w_shape[2], x + ulong(first) * columns, (const device float*)x,
              staged + simdgroup * OUTPUTS * Stage<Codec>::halves, columns, present, next - first, lane, false);
  for (int m = 0; m < ROWS; m++)
    for (int n = 0; n < OUTPUTS; n++)
      if (m < next - first && n < present) {
        const float sum = product.result(m, n, columns, 0, false);
        if (lane == (m * OUTPUTS + n) % 32) y[ulong(first + m) * all_outputs + output + n] = T(sum);
      }
  first = next;
}
