// Q5_1: d, m, 4 bytes of fifth bits, 16 bytes of nibbles. w = d * q + m.
#pragma once
#include "base.h"

namespace codecs {

struct Q5_1 : Legacy {
  CODEC_CONSTANT int bytes = 24;
  CODEC_CONSTANT bool has_offset = true;

  template <typename Bytes>
  static int code(Bytes block, int i) { return nibble(block + 8, i) | fifth(block + 4, i); }
};

}  // namespace codecs
