// Seals pages of keys and values: rotates each row, searches its step and packs its codes. A threadgroup takes 32 tokens.
// k, v: (KV heads, capacity, D) float16, the first page to seal at row `first`; signs: (D,); page: (pages, KV heads,
// bytes of a page) uint8. Grid: (128, 4 * KV heads, 2 * pages): keys, then values, of each page.
#include "seal.h"

using Format = pages::Format<SIZE, KEY_BITS, VALUE_BITS>;
threadgroup float y[seal::strip * (SIZE + 1)];
threadgroup float energy[seal::strip * Format::groups];
threadgroup float kept[seal::strip * Format::groups * seal::tried];
threadgroup uint8_t codes[32 * SIZE];
threadgroup float scales[32 * Format::groups];

const int index = thread_index_in_threadgroup;
const int head = threadgroup_position_in_grid.y / 4;
const int token = threadgroup_position_in_grid.y % 4 * 32;
const int number = threadgroup_position_in_grid.z / 2;
const ulong row = ulong(head) * k_shape[1] + first + number * pages::page + token;
device uint8_t* to = page + (ulong(number) * k_shape[0] + head) * Format::bytes;

if (threadgroup_position_in_grid.z % 2 == 0) {
  seal::Strip<Format, KEY_BITS>::run(k + row * SIZE, signs, y, energy, kept, codes, scales, true, index, 128);
  seal::pack_keys<Format>(to, codes, token, index, 128);
  seal::store_scales<Format>(to + Format::key_scales, scales, token, index, 128);
} else {
  seal::Strip<Format, VALUE_BITS>::run(v + row * SIZE, signs, y, energy, kept, codes, scales, false, index, 128);
  seal::pack_values<Format>(to, codes, token, index, 128);
  seal::store_scales<Format>(to + Format::value_scales, scales, token, index, 128);
}
