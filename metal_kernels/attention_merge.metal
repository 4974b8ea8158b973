// The second pass: y[l][h] = what all splits give together. A sink is a score that takes part in the sum and has no value.
// part: (splits, L, H, D), largest, total: (splits, L, H), sinks: (H,), y: (L, H, D). Grid: (32, H, L).
#include "codecs/base.h"

const int lane = thread_index_in_simdgroup;
const int heads = threads_per_grid.y;
const int head = threadgroup_position_in_grid.y;
const int row = threadgroup_position_in_grid.z;
const int step = threads_per_grid.z * heads;
const int at = row * heads + head;

float most = SINKS ? sinks[head] : -INFINITY;
for (int s = 0; s < splits; s++) most = metal::max(most, largest[s * step + at]);
float sum = SINKS ? metal::precise::exp(sinks[head] - most) : 0.0f;
for (int s = 0; s < splits; s++) {
  const ulong place = ulong(s) * step + at;
  sum = metal::fma(metal::precise::exp(largest[place] - most), total[place], sum);
}
for (int d = lane; d < SIZE; d += 32) {
  float mixed = 0;
  for (int s = 0; s < splits; s++) {
    const ulong place = ulong(s) * step + at;
    mixed = metal::fma(metal::precise::exp(largest[place] - most), part[place * SIZE + d], mixed);
  }
  y[ulong(at) * SIZE + d] = mixed / sum;
}
