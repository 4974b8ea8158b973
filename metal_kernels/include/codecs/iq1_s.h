// IQ1_S: d, 32 grid bytes, per 32 weights a number: four times 3 grid bits, a scale, and the way that points move.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ1_S : Grid<IQ1_S> {
  CODEC_CONSTANT int bytes = 50;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT int shift = 3;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int number = load_u16(block + 34 + i / 32 * 2);
    const int point = iq1_grid[block[2 + i / 8] | (number >> (3 * (i % 32 / 8)) & 7) << 8];
    return 8 * ((point >> (2 * (i % 8)) & 3) - 1) + (number >> 15 ? -1 : 1);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * (load_u16(block + 34 + 2 * g) >> 12 & 7) + 1; }
};

}  // namespace codecs
