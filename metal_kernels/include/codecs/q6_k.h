// Q6_K: 128 bytes of nibbles, 64 bytes of upper 2 bits, 16 signed scales, d. w = d * s * (q - 32).
#pragma once
#include "base.h"

namespace codecs {

struct Q6_K : Super<Q6_K> {
  CODEC_CONSTANT int bytes = 210;
  CODEC_CONSTANT int group = 16;
  CODEC_CONSTANT bool has_offset = false;
  CODEC_CONSTANT int d_at = 208;

  template <typename Bytes>
  static int code(Bytes block, int i) { return (nibble(block, i) | field(block + 128, i, 2) << 4) - 32; }
  // Of each run of 64 bytes all low nibbles, then all high ones.
  template <typename Bytes>
  static int nibble(Bytes bytes, int i) { return bytes[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15; }
  template <typename Bytes>
  static int sub_scale(Bytes block, int g) { return signed_byte(block[192 + g]); }
};

}  // namespace codecs
