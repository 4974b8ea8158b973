// The first pass over sinks, sealed pages and the latest tokens: of each query the softmax over one split of them, not
// yet divided by its sum. The first `plain` splits are a page of the buffer each, the others SPLIT sealed tokens.
// q, turned: (L, H, D) float32, as they are and rotated; k, v: (KV heads, capacity, D) float16: sinks, then positions
// from `base` on; packed: (places, KV heads, bytes of a page) uint8; table: places of the pages, int32.
// part: (splits, L, H, D), largest, total: (splits, L, H), float32. Grid: (32, SIMDGROUPS * KV heads, splits).
#include "sealed.h"

using Format = pages::Format<SIZE, KEY_BITS, VALUE_BITS>;
threadgroup half tile[attention::tile * (SIZE + 2)];
threadgroup float scales[attention::tile * Format::groups];

const int lane = thread_index_in_simdgroup;
const int index = thread_index_in_threadgroup;
const int threads = 32 * SIMDGROUPS;
const int kv_head = threadgroup_position_in_grid.y;
const int kv_heads = threadgroups_per_grid.y;
const int split = threadgroup_position_in_grid.z;
const int rows = q_shape[0];
const int heads = q_shape[1];
const int groups = heads / kv_heads;
const int start = simdgroup_index_in_threadgroup * QUERIES;
const int present = metal::clamp(rows * groups - start, 0, QUERIES);

const bool codes = split >= plain;
const sealed::View view = {position, codes, scale, softcap};
const device float* queries = (codes ? turned : q) + kv_head * groups * SIZE;
const int whole = codes ? pages::sinks + (split - plain) * SPLIT : split == 0 ? 0 : base + (split - 1) * pages::page;
const int last = codes ? pages::sinks + sealed_tokens : split == 0 ? int(pages::sinks) : position + rows;
const int end = metal::min(whole + (codes ? SPLIT : int(pages::page)), last);
const ulong row = ulong(kv_head) * k_shape[1] + split * pages::page;

attention::Softmax<SIZE, QUERIES> softmax;
softmax.clear();
for (int first = whole; first < end; first += attention::tile) {
  const int number = codes ? table[(first - pages::sinks) / pages::page] : 0;
  const device uint8_t* page = packed + (ulong(number) * kv_heads + kv_head) * Format::bytes;
  const ulong at = codes ? 0 : (row + (first - whole)) * SIZE;
  const int in_page = first % pages::page;
  const int there = metal::min(end - first, int(attention::tile));
  if (codes) {
    pages::load_scales<Format, attention::tile>(scales, page + Format::key_scales, in_page, index, threads);
    pages::load_keys<Format, attention::tile>(tile, SIZE + 2, scales, page, in_page, index, threads);
  } else {
    sealed::no_scales<Format, attention::tile>(scales, index, threads);
    attention::load<SIZE, attention::tile>(tile, SIZE + 2, k + at, there, index, threads);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  softmax.score(sealed::Tile<Format>{tile, scales}, queries, view, start, present, groups, heads, first + lane, lane);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (codes) {
    pages::load_scales<Format, attention::tile>(scales, page + Format::value_scales, in_page, index, threads);
    pages::load_values<Format, attention::tile>(tile, SIZE + 2, scales, page + Format::value_codes, in_page, index, threads);
  } else {
    attention::load<SIZE, attention::tile>(tile, SIZE + 2, v + at, there, index, threads);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  softmax.mix(sealed::Tile<Format>{tile, scales}, present, lane);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
for (int i = 0; i < QUERIES; i++)
  if (i < present) {
    const ulong place = (ulong(split) * rows + (start + i) / groups) * heads + kv_head * groups + (start + i) % groups;
    if (lane == 0) largest[place] = softmax.largest[i];
    if (lane == 0) total[place] = softmax.total[i];
    for (int s = 0; s < softmax.slots; s++)
      if (s * 32 + lane < SIZE) part[place * SIZE + s * 32 + lane] = softmax.sum[i][s];
  }
