// Attention of many rows: each key and value is read once for 32 queries, which are 8 rows of each of 4 blocks.
// q, y: (L, H, D) float32, L a multiple of 8, of which `rows` are there; k, v: (pages, 128, D) float16; table: (KV heads,
// pages of a head) int32; sinks: (H,). Blocks of one KV head: its query heads, then the next 8 rows.
// Grid: (32, 4 * KV heads, blocks of a KV head / 4).
#include "attention_tile.h"

threadgroup float tile[TOKENS * (SIZE + 4)];
threadgroup float scratch[4 * attention::Scratch<TOKENS>::size];

const int lane = thread_index_in_simdgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int index = thread_index_in_threadgroup;
const int heads = q_shape[1];
const int kv_head = threadgroup_position_in_grid.y;
const int groups = heads / threadgroups_per_grid.y;
const int first_block = threadgroup_position_in_grid.z * 4;
const int row = (first_block + simdgroup) / groups * 8;
const int head = kv_head * groups + (first_block + simdgroup) % groups;
const bool there = row < rows;
const attention::View view = {length, rows, window, scale, softcap};
const device int* pages = table + kv_head * head_pages;
const ulong stride = ulong(heads) * SIZE;
const ulong at = row * stride + head * SIZE;
threadgroup float* mine = scratch + simdgroup * attention::Scratch<TOKENS>::size;

const int first_place = length - rows + first_block / groups * 8;
const int last_place = length - rows + (first_block + 3) / groups * 8 + 7;
const int begin = window > 0 ? metal::max(0, first_place + 1 - window) / TOKENS * TOKENS : 0;
const int end = metal::min(length, last_place + 1);
attention::RowBlock<SIZE, TOKENS> block;
block.clear(mine, lane);
for (int first = begin; first < end; first += TOKENS) {
  const int present = metal::min(length - first, TOKENS);
  attention::load<SIZE, TOKENS>(tile, SIZE + 4, attention::place<SIZE>(k, pages, first), present, index, 128);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (there) block.score(mine, q + at, stride, tile, view, row, first, lane);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  attention::load<SIZE, TOKENS>(tile, SIZE + 4, attention::place<SIZE>(v, pages, first), present, index, 128);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (there) block.mix(mine, tile);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
if (there) block.store(mine, y + at, stride, SINKS ? sinks[head] : -INFINITY, lane);
