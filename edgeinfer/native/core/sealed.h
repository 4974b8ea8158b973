// Keys and values in sealed pages: what they are made of, how they lie in memory, and attention over them.
//
// A sequence holds its first SINKS positions and its latest ones in float16, in one buffer, and the pages in between in
// codes. A row at position p sees codes of the positions before frontier(p) alone, so that what it sees does not depend
// on how many rows are computed together. The code itself is described in cache/codecs/uniform.py.
//
// A page of one kv head: tiles of key codes [16 positions][32 dimensions], tiles of value codes [32 positions][16
// dimensions] with positions and dimensions exchanged, float16 scales of keys [group][position], those of values.
// A tile is 16 rows of 32 columns in planes, as those of weights are (tiles.h). Codes have no sign: c + 2^(bits - 1).
#pragma once

#include <memory>
#include <vector>

#include "calls.h"

namespace edgeinfer {

constexpr int PAGE = 128;
constexpr int SINKS = 128;
constexpr int TAIL = 256;
constexpr int SCALE_GROUP = 128;  // dimensions that share a scale, at most

// The first position behind the sinks that a row at `position` sees in float16.
inline int frontier(int position) {
  const int sealed = (position + 1 - TAIL) / PAGE * PAGE;
  return sealed > SINKS ? sealed : SINKS;
}

constexpr int FIRST_SEALED = SINKS + PAGE + TAIL - 1;  // the first position whose row sees codes

struct PageFormat {
  int key_bits, value_bits, head_dim;

  int groups() const {
    int count = (head_dim + SCALE_GROUP - 1) / SCALE_GROUP;
    while (head_dim % count) count++;
    return count;
  }
  // Whether there are kernels: scales must not change within a tile.
  bool supported() const {
    const auto is_width = [](int bits) { return bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8; };
    return is_width(key_bits) && is_width(value_bits) && value_bits != 5 && value_bits != 6 && head_dim % STRIP == 0 &&
           head_dim > 0 && head_dim <= MAX_HEAD_DIM && (groups() == 1 || head_dim / groups() % BLOCK == 0);
  }
  int padded_dim() const { return (head_dim + BLOCK - 1) / BLOCK * BLOCK; }
  int key_tile() const { return STRIP * BLOCK * key_bits / 8; }
  int value_tile() const { return STRIP * BLOCK * value_bits / 8; }
  int64_t key_codes() const { return int64_t(PAGE / STRIP) * (padded_dim() / BLOCK) * key_tile(); }
  int64_t value_codes() const { return int64_t(PAGE / BLOCK) * (head_dim / STRIP) * value_tile(); }
  int64_t scales() const { return int64_t(groups()) * PAGE * 2; }
  int64_t key_scales_at() const { return key_codes() + value_codes(); }
  int64_t value_scales_at() const { return key_scales_at() + scales(); }
  int64_t bytes() const { return value_scales_at() + scales(); }  // of one kv head
};

// The sealed pages of a span of PAGE positions, of all layers that seal. Written once.
struct PageBlock {
  explicit PageBlock(int64_t size);
  int64_t size;
  std::shared_ptr<uint8_t[]> memory;
};

struct SealedView {  // rows of the call that belong to one sequence, and all that they see
  CacheView buffer;  // sinks, and then positions from `base` on
  int base;
  int first_row, rows;
  int start;                      // position of the first row
  const PageBlock* const* blocks;  // from position SINKS on
  int64_t place;                   // of this layer in a block
};

// Seals the page that starts at row `row` of the buffer.
void seal(const PageFormat& format, const CacheView& buffer, int kv_heads, int row, uint8_t* page);
void attend_sealed(const AttendCall& call, const PageFormat& format, const std::vector<SealedView>& sequences);

}  // namespace edgeinfer
