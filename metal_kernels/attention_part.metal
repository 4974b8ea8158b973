// The first pass: of each query the softmax over one split of the tokens, not yet divided by its sum.
// q: (L, H, D) float32; k, v: (pages, 128, D) float16; table: (KV heads, pages of a head) int32.
// part: (splits, L, H, D), largest, total: (splits, L, H), float32. Grid: (32, SIMDGROUPS * KV heads, splits).
#include "attention.h"

threadgroup half tile[attention::tile * (SIZE + 2)];

const int lane = thread_index_in_simdgroup;
const int index = thread_index_in_threadgroup;
const int threads = 32 * SIMDGROUPS;
const int head = threadgroup_position_in_grid.y;
const int split = first_split + threadgroup_position_in_grid.z;
const int heads = q_shape[1];
const int groups = heads / threadgroups_per_grid.y;
const attention::View view = {length, q_shape[0], window, scale, softcap};
const int start = simdgroup_index_in_threadgroup * QUERIES;
const int present = metal::clamp(view.rows * groups - start, 0, QUERIES);
const device int* pages = table + head * head_pages;
const device float* queries = q + head * groups * SIZE;

attention::Softmax<SIZE, QUERIES> softmax;
softmax.clear();
const int end = metal::min(length, (split + 1) * SPLIT);
for (int first = split * SPLIT; first < end; first += attention::tile) {
  const int there = metal::min(length - first, int(attention::tile));
  attention::load<SIZE, attention::tile>(tile, SIZE + 2, attention::place<SIZE>(k, pages, first), there, index, threads);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  softmax.score(attention::HalfTile<SIZE>{tile}, queries, view, start, present, groups, heads, first + lane, lane);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  attention::load<SIZE, attention::tile>(tile, SIZE + 2, attention::place<SIZE>(v, pages, first), there, index, threads);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  softmax.mix(attention::HalfTile<SIZE>{tile}, present, lane);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
for (int i = 0; i < QUERIES; i++)
  if (i < present) {
    const int row = (start + i) / groups;
    const ulong at = (ulong(threadgroup_position_in_grid.z) * view.rows + row) * heads + head * groups + (start + i) % groups;
    if (lane == 0) largest[at] = softmax.largest[i];
    if (lane == 0) total[at] = softmax.total[i];
    for (int s = 0; s < softmax.slots; s++)
      if (s * 32 + lane < SIZE) part[at * SIZE + s * 32 + lane] = softmax.sum[i][s];
  }
