// Q2_K: 16 bytes of scale and offset nibbles, 64 bytes of 2-bit q, d, dmin. w = d * s * q - dmin * m.
#pragma once
#include "base.h"

namespace codecs {

struct Q2_K : Super<Q2_K> {
  CODEC_CONSTANT int bytes = 84;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT bool has_offset = true;
  CODEC_CONSTANT int d_at = 80;

  template <typename Bytes>
  static int code(Bytes block, int i) { return field(block + 16, i, 2); }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return block[g] & 15; }
  template <typename Bytes>
  static int sub_offset(Bytes block, int g) { return block[g] >> 4; }
};

}  // namespace codecs
