// Q4_K: d, dmin, 12 bytes of 6-bit scales and offsets, 128 bytes of nibbles. w = d * s * q - dmin * m.
#pragma once
#include "base.h"

namespace codecs {

struct Q4_K : Super<Q4_K> {
  CODEC_CONSTANT int bytes = 144;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT bool has_offset = true;
  CODEC_CONSTANT int d_at = 0;

  template <typename Bytes>
  static int code(Bytes block, int i) { return field(block + 16, i, 4); }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return SixBit::scale(block + 4, g); }
  template <typename Bytes>
  static int sub_offset(Bytes block, int g) { return SixBit::offset(block + 4, g); }
};

}  // namespace codecs
