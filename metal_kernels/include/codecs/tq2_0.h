// TQ2_0: 64 bytes of 2-bit q, d. w = d * (q - 1).
#pragma once
#include "base.h"

namespace codecs {

struct TQ2_0 : Ternary<TQ2_0> {
  CODEC_CONSTANT int weights = 256;
  CODEC_CONSTANT int bytes = 66;
  CODEC_CONSTANT int d_at = 64;

  template <typename Bytes>
  static int code(Bytes block, int i) { return (block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1; }
};

}  // namespace codecs
