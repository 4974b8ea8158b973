// IQ2_XS: d, 32 numbers of 9 grid and 7 sign bits, 8 bytes of scale nibbles.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ2_XS : Grid<IQ2_XS> {
  CODEC_CONSTANT int bytes = 74;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT int shift = 3;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int number = load_u16(block + 2 + i / 8 * 2);
    return with_sign(two_bits(iq2_xs_grid[number & 511], i % 8), with_parity(number >> 9), i % 8);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * nibble(block + 66, g) + 1; }
};

}  // namespace codecs
