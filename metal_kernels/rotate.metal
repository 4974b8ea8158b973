// y = x rotated as keys are before they are sealed. x, y: (L, H, D) float32; signs: (D,). Grid: (32, H, L).
#include "rotation.h"

threadgroup float turned[SIZE];

const int lane = thread_index_in_simdgroup;
const ulong at = (ulong(threadgroup_position_in_grid.z) * threads_per_grid.y + threadgroup_position_in_grid.y) * SIZE;

for (int d = lane; d < SIZE; d += 32) turned[d] = x[at + d] * signs[d];
rotation::transform<SIZE>(turned, lane);
for (int d = lane; d < SIZE; d += 32) y[at + d] = turned[d] * rotation::Blocks<SIZE>::norm;
