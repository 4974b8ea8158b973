// BF16: the upper half of a float32.
#pragma once
#include "base.h"

namespace codecs {

struct BF16 : Plain {
  CODEC_CONSTANT int bytes = 2;

  template <typename Bytes>
  static float scale(Bytes block, int) { return float_bits((unsigned int)load_u16(block) << 16); }
};

}  // namespace codecs
