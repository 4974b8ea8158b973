// Q3_K: 32 bytes of third bits, 64 bytes of 2-bit q, 12 bytes of 6-bit scales, d. w = d * (s - 32) * (q - 4).
#pragma once
#include "base.h"

namespace codecs {

struct Q3_K : Super<Q3_K> {
  CODEC_CONSTANT int bytes = 110;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT bool has_offset = false;
  CODEC_CONSTANT int d_at = 108;

  template <typename Bytes>
  static int code(Bytes block, int i) { return (field(block + 32, i, 2) | field(block, i, 1) << 2) - 4; }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) {
    const int low = block[96 + g % 8] >> (g / 8 * 4) & 15;
    const int high = block[104 + g % 4] >> (g / 4 * 2) & 3;
    return (low | high << 4) - 32;
  }
};

}  // namespace codecs
