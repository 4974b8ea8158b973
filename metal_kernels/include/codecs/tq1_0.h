// TQ1_0: 48 bytes of five ternary digits, 4 of four, d. w = d * (digit - 1).
#pragma once
#include "base.h"

namespace codecs {

struct TQ1_0 : Ternary<TQ1_0> {
  CODEC_CONSTANT int weights = 256;
  CODEC_CONSTANT int bytes = 54;
  CODEC_CONSTANT int d_at = 52;

  // A byte holds its digits as a fraction of 256: the next one is what a multiplication by 3 carries out.
  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int byte = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
    const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    const int power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    return ((block[byte] * power & 255) * 3 >> 8) - 1;
  }
};

}  // namespace codecs
