// Q1_0: d, 16 bytes of bits. w = d where the bit is set, else -d.
#pragma once
#include "base.h"

namespace codecs {

struct Q1_0 : Ternary<Q1_0> {
  CODEC_CONSTANT int weights = 128;
  CODEC_CONSTANT int bytes = 18;
  CODEC_CONSTANT int d_at = 0;

  template <typename Bytes>
  static int code(Bytes block, int i) { return 2 * (block[2 + i / 8] >> (i % 8) & 1) - 1; }
};

}  // namespace codecs
