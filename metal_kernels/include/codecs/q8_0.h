// Q8_0: d, 32 signed bytes. w = d * q.
#pragma once
#include "base.h"

namespace codecs {

struct Q8_0 : Legacy {
  CODEC_CONSTANT int bytes = 34;
  CODEC_CONSTANT bool has_offset = false;

  template <typename Bytes>
  static int code(Bytes block, int i) { return signed_byte(block[2 + i]); }
};

}  // namespace codecs
