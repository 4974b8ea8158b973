// IQ1_M: 32 grid bytes, 32 nibbles of 3 grid bits and a way to move, 4 numbers of four scales and a part of d each.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ1_M : Grid<IQ1_M> {
  CODEC_CONSTANT int bytes = 56;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT int shift = 3;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int nibble = block[32 + i / 16] >> (i / 8 % 2 * 4) & 15;
    const int point = iq1_grid[block[i / 8] | (nibble & 7) << 8];
    return 8 * ((point >> (2 * (i % 8)) & 3) - 1) + (nibble >> 3 ? -1 : 1);
  }
  template <typename Bytes>
  static unsigned short d_bits(Bytes block) {
    return (unsigned short)(block[49] >> 4 | (block[51] & 0xf0) | (block[53] & 0xf0) << 4 | (block[55] & 0xf0) << 8);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * (load_u16(block + 48 + g / 4 * 2) >> (3 * (g % 4)) & 7) + 1; }
};

}  // namespace codecs
