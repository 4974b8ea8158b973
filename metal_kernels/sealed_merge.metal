// The second pass: y[l][h] = what all splits give together, those of sealed pages rotated back.
// part: (splits, L, H, D), the first `plain` splits as they are; largest, total: (splits, L, H); signs: (D,);
// y: (L, H, D). Grid: (32, H, L).
#include "rotation.h"

threadgroup float turned[SIZE];

const int lane = thread_index_in_simdgroup;
const int heads = threads_per_grid.y;
const int at = threadgroup_position_in_grid.z * heads + threadgroup_position_in_grid.y;
const int step = part_shape[1] * heads;

float most = -INFINITY;
for (int s = 0; s < splits; s++) most = metal::max(most, largest[ulong(s) * step + at]);
float sum = 0;
for (int s = 0; s < splits; s++) {
  const ulong place = ulong(s) * step + at;
  sum = metal::fma(metal::precise::exp(largest[place] - most), total[place], sum);
}
for (int d = lane; d < SIZE; d += 32) {
  float mixed = 0;
  for (int s = plain; s < splits; s++) {
    const ulong place = ulong(s) * step + at;
    mixed = metal::fma(metal::precise::exp(largest[place] - most), part[place * SIZE + d], mixed);
  }
  turned[d] = mixed;
}
rotation::transform<SIZE>(turned, lane);
for (int d = lane; d < SIZE; d += 32) {
  float mixed = turned[d] * rotation::Blocks<SIZE>::norm * signs[d];
  for (int s = 0; s < plain; s++) {
    const ulong place = ulong(s) * step + at;
    mixed = metal::fma(metal::precise::exp(largest[place] - most), part[place * SIZE + d], mixed);
  }
  y[ulong(at) * SIZE + d] = mixed / sum;
}
