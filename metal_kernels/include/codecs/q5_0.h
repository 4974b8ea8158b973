// Q5_0: d, 4 bytes of fifth bits, 16 bytes of nibbles. w = d * (q - 16).
#pragma once
#include "base.h"

namespace codecs {

struct Q5_0 : Legacy {
  CODEC_CONSTANT int bytes = 22;
  CODEC_CONSTANT bool has_offset = false;

  template <typename Bytes>
  static int code(Bytes block, int i) { return (nibble(block + 6, i) | fifth(block + 2, i)) - 16; }
};

}  // namespace codecs
