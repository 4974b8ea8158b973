// Q4_0: d, 16 bytes of nibbles. w = d * (q - 8).
#pragma once
#include "base.h"

namespace codecs {

struct Q4_0 : Legacy {
  CODEC_CONSTANT int bytes = 18;
  CODEC_CONSTANT bool has_offset = false;

  template <typename Bytes>
  static int code(Bytes block, int i) { return nibble(block + 2, i) - 8; }
};

}  // namespace codecs
