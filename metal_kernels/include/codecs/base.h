// What a codec is, in the subset of C++ that Metal shares: no library, and pointers only as template parameters, so
// that one text serves every address space.
//
//   weights, bytes      of a block, as stored in the file
//   group               consecutive weights that share a scale (and an offset)
//   has_offset          whether a group has an offset
//   has_sub_scales      whether a group's scale is the block's float16 times a small integer
//   code(block, i)      the integer of weight i, its zero point taken off
//   scale(block, g), offset(block, g)      float32, of group g
//   d_bits(block), m_bits(block), sub_scale(block, g), sub_offset(block, g)      what those are made of
//
// A code is in -127 … 127. CODEC_TABLE is a table of numbers that codecs look up.
// weight i = scale(i / group) * code(i) + offset(i / group), rounded after each operation.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#define CODEC_CONSTANT static constexpr constant
#define CODEC_TABLE constant constexpr
#else
#include "host.h"
#define CODEC_CONSTANT static constexpr
#define CODEC_TABLE static constexpr
#endif

namespace codecs {

#ifdef __METAL_VERSION__
inline float half_bits(unsigned short bits) { return float(metal::as_type<half>(bits)); }
inline float float_bits(unsigned int bits) { return metal::as_type<float>(bits); }
#else
using host::float_bits;
using host::half_bits;
#endif

template <typename Bytes>
inline unsigned short load_u16(Bytes at) {
  return (unsigned short)(at[0] | at[1] << 8);
}

template <typename Bytes>
inline unsigned int load_u32(Bytes at) {
  return (unsigned int)load_u16(at) | (unsigned int)load_u16(at + 2) << 16;
}

// One byte as the signed number it stores.
inline int signed_byte(int byte) { return (byte ^ 128) - 128; }

// Weight i of a block.
template <typename Codec, typename Bytes>
inline float decode(Bytes block, int i) {
  const float scaled = Codec::scale(block, i / Codec::group) * float(Codec::code(block, i));
  return Codec::has_offset ? scaled + Codec::offset(block, i / Codec::group) : scaled;
}

// What the codecs without blocks have in common: a weight is its own scale.
struct Plain {
  CODEC_CONSTANT int weights = 1;
  CODEC_CONSTANT int group = 1;
  CODEC_CONSTANT bool has_offset = false;
  CODEC_CONSTANT bool has_sub_scales = false;

  template <typename Bytes>
  static int code(Bytes, int) { return 1; }
  template <typename Bytes>
  static float offset(Bytes, int) { return 0; }
};

// What the codecs of 32 weights with one float16 scale have in common. The offset, where there is one, follows it.
struct Legacy {
  CODEC_CONSTANT int weights = 32;
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT bool has_sub_scales = false;

  template <typename Bytes>
  static unsigned short d_bits(Bytes block) { return load_u16(block); }
  template <typename Bytes>
  static unsigned short m_bits(Bytes block) { return load_u16(block + 2); }
  template <typename Bytes>
  static float scale(Bytes block, int) { return half_bits(load_u16(block)); }
  template <typename Bytes>
  static float offset(Bytes block, int) { return half_bits(load_u16(block + 2)); }

  // 16 bytes: the low nibbles are weights 0 to 15, the high ones 16 to 31.
  template <typename Bytes>
  static int nibble(Bytes nibbles, int i) { return nibbles[i & 15] >> (i >> 4 << 2) & 15; }
  // 4 bytes: bit i is the fifth bit of weight i.
  template <typename Bytes>
  static int fifth(Bytes bits, int i) { return (bits[i >> 3] >> (i & 7) & 1) << 4; }
};

// What the codecs of 256 weights have in common, given the sub-scales and where d (and dmin) lie.
template <typename Codec>
struct Super {
  CODEC_CONSTANT int weights = 256;
  CODEC_CONSTANT bool has_sub_scales = true;

  template <typename Bytes>
  static unsigned short d_bits(Bytes block) { return load_u16(block + Codec::d_at); }
  template <typename Bytes>
  static unsigned short m_bits(Bytes block) { return load_u16(block + Codec::d_at + 2); }
  template <typename Bytes>
  static float scale(Bytes block, int g) { return half_bits(d_bits(block)) * float(Codec::sub_scale(block, g)); }
  template <typename Bytes>
  static float offset(Bytes block, int g) { return -(half_bits(m_bits(block)) * float(Codec::sub_offset(block, g))); }

  template <typename Bytes>
  static int sub_offset(Bytes, int) { return 0; }

  // Of each run of 32 bytes the lowest field of all, then the next. Weight i, fields of `bits` bits.
  template <typename Bytes>
  static int field(Bytes bytes, int i, int bits) {
    const int run = 32 * 8 / bits;
    return bytes[i / run * 32 + i % 32] >> (i % run / 32 * bits) & ((1 << bits) - 1);
  }
};

// What the codecs have in common whose block has one float16 scale and codes from -1 to 2.
template <typename Codec>
struct Ternary {
  CODEC_CONSTANT int group = 32;
  CODEC_CONSTANT bool has_offset = false;
  CODEC_CONSTANT bool has_sub_scales = false;

  template <typename Bytes>
  static unsigned short d_bits(Bytes block) { return load_u16(block + Codec::d_at); }
  template <typename Bytes>
  static float scale(Bytes block, int) { return half_bits(d_bits(block)); }
  template <typename Bytes>
  static float offset(Bytes, int) { return 0; }
};

// The eight 6-bit scales and offsets of Q4_K and Q5_K. Numbers 0 to 3 fill the low bits of bytes 0 to 3 (scales) and
// 4 to 7 (offsets); 4 to 7 have their low four bits in bytes 8 to 11 and their upper two at the top of bytes 0 to 7.
struct SixBit {
  template <typename Bytes>
  static int scale(Bytes s, int g) { return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4; }
  template <typename Bytes>
  static int offset(Bytes s, int g) { return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4; }
};

}  // namespace codecs
