// Q5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles. w = d * s * q - dmin * m.
#pragma once
#include "base.h"

namespace codecs {

struct Q5_K : Super<Q5_K> {
  CODEC_CONSTANT int bytes = 176;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT bool has_offset = true;
  CODEC_CONSTANT int d_at = 0;

  template <typename Bytes>
  static int code(Bytes block, int i) { return field(block + 48, i, 4) | field(block + 16, i, 1) << 4; }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return SixBit::scale(block + 4, g); }
  template <typename Bytes>
  static int sub_offset(Bytes block, int g) { return SixBit::offset(block + 4, g); }
};

}  // namespace codecs
