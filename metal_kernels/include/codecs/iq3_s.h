// IQ3_S: d, 64 grid bytes, their ninth bits, 32 sign bytes, 4 bytes of scale nibbles.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ3_S : Grid<IQ3_S> {
  CODEC_CONSTANT int bytes = 110;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT int shift = 0;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int point = block[2 + i / 4] | (block[66 + i / 32] >> (i % 32 / 4) & 1) << 8;
    return with_sign(2 * (iq3_s_grid[point] >> (3 * (i % 4)) & 7) + 1, block[74 + i / 8], i % 8);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * nibble(block + 106, g) + 1; }
};

}  // namespace codecs
