// IQ4_NL: d, 16 bytes of nibbles that name values. w = d * value.
#pragma once
#include "values.h"

namespace codecs {

struct IQ4_NL : Legacy {
  CODEC_CONSTANT int bytes = 18;
  CODEC_CONSTANT bool has_offset = false;

  template <typename Bytes>
  static int code(Bytes block, int i) { return iq4_values[nibble(block + 2, i)]; }
};

}  // namespace codecs
