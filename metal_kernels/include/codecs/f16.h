// F16: a float16.
#pragma once
#include "base.h"

namespace codecs {

struct F16 : Plain {
  CODEC_CONSTANT int bytes = 2;

  template <typename Bytes>
  static float scale(Bytes block, int) { return half_bits(load_u16(block)); }
};

}  // namespace codecs
