// As sealed_part, of many rows, as attention_rows takes them: of each query the softmax over all that is not sealed
// (part 0) and over all that is (part 1), not yet divided by its sum. Scales are multiplied into a tile as it is
// unpacked, once for 32 queries.
// q, turned: (L, H, D) float32, L a multiple of 8, of which `rows` are there; the rest as in sealed_part.
// part: (2, L, H, D), largest, total: (2, L, H). Grid: (32, 4 * KV heads, 2 * (blocks of a KV head / 4)).
#include "attention_tile.h"
#include "sealed.h"

using Format = pages::Format<SIZE, KEY_BITS, VALUE_BITS>;
threadgroup float tile[TOKENS * (SIZE + 4)];
threadgroup float scratch[4 * attention::Scratch<TOKENS>::size];
threadgroup float key_scales[TOKENS * Format::groups];
threadgroup float value_scales[TOKENS * Format::groups];

const int lane = thread_index_in_simdgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int index = thread_index_in_threadgroup;
const int heads = q_shape[1];
const int kv_head = threadgroup_position_in_grid.y;
const int kv_heads = threadgroups_per_grid.y;
const int groups = heads / kv_heads;
const int first_block = threadgroup_position_in_grid.z / 2 * 4;
const int row = (first_block + simdgroup) / groups * 8;
const bool there = row < rows;
const bool codes = threadgroup_position_in_grid.z % 2 == 1;
const sealed::View view = {position, codes, scale, softcap};
const ulong stride = ulong(heads) * SIZE;
const int head = kv_head * groups + (first_block + simdgroup) % groups;
const device float* queries = (codes ? turned : q) + row * stride + head * SIZE;
threadgroup float* mine = scratch + simdgroup * attention::Scratch<TOKENS>::size;

// Nothing between the sinks and the frontier of the first row is seen as it is.
const int first_row = metal::min(first_block / groups * 8, rows - 1);
const int last_row = metal::min((first_block + 3) / groups * 8 + 7, rows - 1);
const int middle = pages::frontier(position + first_row);
const int begin = codes ? int(pages::sinks) : 0;
const int end = codes ? pages::frontier(position + last_row) : position + last_row + 1;
attention::RowBlock<SIZE, TOKENS> block;
block.clear(mine, lane);
for (int first = begin; first < end; first += TOKENS) {
  if (!codes && first == pages::sinks) first = middle;
  const int number = codes ? table[(first - pages::sinks) / pages::page] : 0;
  const device uint8_t* page = packed + (ulong(number) * kv_heads + kv_head) * Format::bytes;
  const int in_page = first % pages::page;
  const int buffered = first < pages::sinks ? first : pages::sinks + first - base;
  const ulong at = codes ? 0 : (ulong(kv_head) * k_shape[1] + buffered) * SIZE;
  const int present = metal::min(end - first, TOKENS);
  if (codes) {
    pages::load_scales<Format, TOKENS>(key_scales, page + Format::key_scales, in_page, index, 128);
    pages::load_scales<Format, TOKENS>(value_scales, page + Format::value_scales, in_page, index, 128);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (codes) pages::load_keys<Format, TOKENS>(tile, SIZE + 4, key_scales, page, in_page, index, 128);
  else attention::load<SIZE, TOKENS>(tile, SIZE + 4, k + at, present, index, 128);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (there) block.score(mine, queries, stride, tile, view, row, first, lane);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (codes) pages::load_values<Format, TOKENS>(tile, SIZE + 4, value_scales, page + Format::value_codes, in_page, index, 128);
  else attention::load<SIZE, TOKENS>(tile, SIZE + 4, v + at, present, index, 128);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (there) block.mix(mine, tile);
}
if (there) {
  const ulong place = (ulong(codes) * q_shape[0] + row) * heads + head;
  block.store_part(part + place * SIZE, stride);
  if (lane % 4 == 0) largest[place + ulong(lane / 4) * heads] = block.largest;
  if (lane % 4 == 0) total[place + ulong(lane / 4) * heads] = block.total;
}
