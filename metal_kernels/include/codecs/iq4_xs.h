// IQ4_XS: d, 2 bytes of upper bits of scales, 4 of lower ones, 128 of nibbles. w = d * (s - 32) * value.
#pragma once
#include "values.h"

namespace codecs {

struct IQ4_XS : Super<IQ4_XS> {
  CODEC_CONSTANT int bytes = 136;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT bool has_offset = false;
  CODEC_CONSTANT int d_at = 0;

  template <typename Bytes>
  static int code(Bytes block, int i) { return iq4_values[block[8 + i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15]; }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) {
    return ((block[4 + g / 2] >> (g % 2 * 4) & 15) | (block[2 + g / 4] >> (g % 4 * 2) & 3) << 4) - 32;
  }
};

}  // namespace codecs
