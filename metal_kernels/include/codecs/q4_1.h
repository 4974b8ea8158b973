// Q4_1: d, m, 16 bytes of nibbles. w = d * q + m.
#pragma once
#include "base.h"

namespace codecs {

struct Q4_1 : Legacy {
  CODEC_CONSTANT int bytes = 20;
  CODEC_CONSTANT bool has_offset = true;

  template <typename Bytes>
  static int code(Bytes block, int i) { return nibble(block + 4, i); }
};

}  // namespace codecs
