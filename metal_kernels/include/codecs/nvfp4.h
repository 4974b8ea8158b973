// NVFP4: 4 unsigned E4M3 scales, per 16 weights 8 bytes of E2M1 nibbles, which the table doubles.
#pragma once
#include "values.h"

namespace codecs {

struct NVFP4 {
  CODEC_CONSTANT int weights = 64;
  CODEC_CONSTANT int bytes = 36;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT bool has_offset = false;
  CODEC_CONSTANT bool has_sub_scales = false;

  template <typename Bytes>
  static int code(Bytes block, int i) { return e2m1_values[block[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15]; }
  // Half of the number; its sign bit says nothing, and 0x7f is zero.
  template <typename Bytes>
  static float scale(Bytes block, int g) {
    const int exponent = block[g] >> 3 & 15, mantissa = block[g] & 7;
    if (block[g] == 0x7f) return 0;
    if (exponent == 0) return float(mantissa) * (1.0f / 1024);
    return float_bits((unsigned int)(exponent + 119) << 23) * (1.0f + float(mantissa) * 0.125f);
  }
  template <typename Bytes>
  static float offset(Bytes, int) { return 0; }
};

}  // namespace codecs
