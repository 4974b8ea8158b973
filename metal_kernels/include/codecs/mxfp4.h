// MXFP4: an E8M0 exponent, 16 bytes of E2M1 nibbles, which the table doubles. w = 2^(e - 128) * value.
#pragma once
#include "values.h"

namespace codecs {

struct MXFP4 : Legacy {
  CODEC_CONSTANT int bytes = 17;
  CODEC_CONSTANT bool has_offset = false;

  template <typename Bytes>
  static int code(Bytes block, int i) { return e2m1_values[nibble(block + 1, i)]; }
  template <typename Bytes>
  static float scale(Bytes block, int) {
    const unsigned int e = block[0];
    return float_bits(e < 2 ? 0x200000u << e : (e - 1) << 23);
  }
};

}  // namespace codecs
