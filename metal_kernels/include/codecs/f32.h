// F32: a float32.
#pragma once
#include "base.h"

namespace codecs {

struct F32 : Plain {
  CODEC_CONSTANT int bytes = 4;

  template <typename Bytes>
  static float scale(Bytes block, int) { return float_bits(load_u32(block)); }
};

}  // namespace codecs
