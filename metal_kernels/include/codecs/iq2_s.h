// IQ2_S: d, 32 grid bytes, 32 sign bytes, 8 bytes of the grid's upper 2 bits, 8 of scale nibbles.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ2_S : Grid<IQ2_S> {
  CODEC_CONSTANT int bytes = 82;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT int shift = 3;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int eight = i / 8;
    const int point = block[2 + eight] | (block[66 + eight / 4] >> (eight % 4 * 2) & 3) << 8;
    return with_sign(two_bits(iq2_s_grid[point], i % 8), block[34 + eight], i % 8);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * nibble(block + 74, g) + 1; }
};

}  // namespace codecs
