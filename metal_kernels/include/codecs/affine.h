// AFFINE<bits>_<group>, of converted weights: a float32 scale and offset, then the q of a group as one string of bits,
// the first lowest. w = scale * q + offset.
#pragma once
#include "base.h"

namespace codecs {

template <int Bits, int Group>
struct Affine {
  CODEC_CONSTANT int weights = Group;
  CODEC_CONSTANT int bytes = 8 + Group * Bits / 8;
  CODEC_CONSTANT int group = Group;
  CODEC_CONSTANT bool has_offset = true;
  CODEC_CONSTANT bool has_sub_scales = false;

  template <typename Bytes>
  static int code(Bytes block, int i) {
    const int at = 8 + i * Bits / 8, shift = i * Bits % 8;
    const int low = block[at] >> shift;
    const int high = shift + Bits > 8 ? block[at + 1] << (8 - shift) : 0;
    return (low | high) & ((1 << Bits) - 1);
  }
  template <typename Bytes>
  static float scale(Bytes block, int) { return float_bits(load_u32(block)); }
  template <typename Bytes>
  static float offset(Bytes block, int) { return float_bits(load_u32(block + 4)); }
};

}  // namespace codecs
