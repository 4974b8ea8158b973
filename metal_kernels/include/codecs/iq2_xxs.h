// IQ2_XXS: d, then per 32 weights four grid bytes and a word of four fields of 7 signs and a scale.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ2_XXS : Grid<IQ2_XXS> {
  CODEC_CONSTANT int bytes = 66;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT int shift = 3;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const Bytes part = block + 2 + i / 32 * 8;
    const int eight = i % 32 / 8;
    const int signs = with_parity(int(load_u32(part + 4) >> (7 * eight) & 127));
    return with_sign(two_bits(iq2_xxs_grid[part[eight]], i % 8), signs, i % 8);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * (block[2 + 8 * g + 7] >> 4) + 1; }
};

}  // namespace codecs
