// Q2_0: d, 16 bytes of 2-bit q. w = d * (q - 1).
#pragma once
#include "base.h"

namespace codecs {

struct Q2_0 : Ternary<Q2_0> {
  CODEC_CONSTANT int weights = 64;
  CODEC_CONSTANT int bytes = 18;
  CODEC_CONSTANT int d_at = 0;

  template <typename Bytes>
  static int code(Bytes block, int i) { return (block[2 + i / 4] >> (i % 4 * 2) & 3) - 1; }
};

}  // namespace codecs
