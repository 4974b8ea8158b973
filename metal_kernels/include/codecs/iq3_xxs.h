// IQ3_XXS: d, 64 grid bytes, per 32 weights a word of four fields of 7 signs and a scale.
#pragma once
#include "grids.h"

namespace codecs {

struct IQ3_XXS : Grid<IQ3_XXS> {
  CODEC_CONSTANT int bytes = 98;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT int shift = 2;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int coordinate = iq3_xxs_grid[block[2 + i / 4]] >> (3 * (i % 4)) & 7;
    const int signs = with_parity(int(load_u32(block + 66 + i / 32 * 4) >> (7 * (i % 32 / 8)) & 127));
    return with_sign(coordinate == 7 ? 62 : 4 + 8 * coordinate, signs, i % 8);
  }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return 2 * (block[66 + 4 * g + 3] >> 4) + 1; }
};

}  // namespace codecs
