// Reads tiles: codes as operands of dot4, scales and offsets as vectors over rows.
#pragma once

#include "../calls.h"
#include "simd.h"

namespace edgeinfer::ISA {

INLINE I code_line(const uint8_t* plane, int line, int part) { return load<I>(plane + 64 * line + 4 * W * part); }

// Bits from `from` of every byte, `mask` of them, moved to bit `to`.
template <int from, int to, int mask>
INLINE I field(I line) {
  const I moved = (I)(from > to ? (U)line >> (from > to ? from - to : 0) : (U)line << (to > from ? to - from : 0));
  return moved & all((mask << to) * 0x01010101);
}

template <int first>
INLINE void read_4bit(const uint8_t* plane, int part, I w[8]) {
  UNROLL for (int c = 0; c < 4; c++) {
    const I line = code_line(plane, c, part);
    w[c] = field<0, first, 15>(line);
    w[c + 4] = field<4, first, 15>(line);
  }
}

template <int first, bool join>
INLINE void read_2bit(const uint8_t* plane, int part, I w[8]) {
  UNROLL for (int j = 0; j < 2; j++) {
    const I line = code_line(plane, j, part);
    const I parts[4] = {field<0, first, 3>(line), field<2, first, 3>(line), field<4, first, 3>(line),
                        field<6, first, 3>(line)};
    UNROLL for (int c = 0; c < 4; c++) w[4 * j + c] = join ? w[4 * j + c] | parts[c] : parts[c];
  }
}

template <int at>
INLINE void join_1bit(const uint8_t* plane, int part, I w[8]) {
  const I line = code_line(plane, 0, part);
  w[0] |= field<0, at, 1>(line);
  w[1] |= field<1, at, 1>(line);
  w[2] |= field<2, at, 1>(line);
  w[3] |= field<3, at, 1>(line);
  w[4] |= field<4, at, 1>(line);
  w[5] |= field<5, at, 1>(line);
  w[6] |= field<6, at, 1>(line);
  w[7] |= field<7, at, 1>(line);
}

// Of each byte, a place in a table of 16, the byte there.
INLINE I look_up(I places, const int8_t* table) {
#if defined(__AVX512BW__)
  return (I)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), (__m512i)places);
#elif defined(__AVX2__)
  return (I)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), (__m256i)places);
#elif defined(__ARM_NEON)
  return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s32(places)));
#else
  int8_t bytes[4 * W];
  store(bytes, places);
  for (int i = 0; i < 4 * W; i++) bytes[i] = table[bytes[i] & 15];
  return load<I>(bytes);
#endif
}

template <class T>
INLINE void read_codes(const uint8_t* planes, int part, const Codebook* book, I w[8]) {
  if constexpr (T::bits == 8) {
    UNROLL for (int c = 0; c < 8; c++) w[c] = code_line(planes, c, part);
  } else if constexpr (T::bits == 2 || T::bits == 3) {
    read_2bit<0, false>(planes, part, w);
    if constexpr (T::bits == 3) join_1bit<2>(planes + 128, part, w);
  } else {
    read_4bit<0>(planes, part, w);
    if constexpr (T::bits == 5) join_1bit<4>(planes + 256, part, w);
    if constexpr (T::bits == 6) read_2bit<4, true>(planes + 256, part, w);
  }
  if constexpr (T::has_book) UNROLL for (int c = 0; c < 8; c++) w[c] = look_up(w[c], book->values);
  if constexpr (T::is_signed) UNROLL for (int c = 0; c < 8; c++) w[c] ^= all(int32_t(SIGNED_BIAS * 0x01010101u));
}

template <class T>
struct Scales {
  F scale[T::groups], offset[T::groups];
};

// `halves` points to the float16 scales that count for the tile, which lie in it or before its run.
template <class T>
INLINE Scales<T> read_scales(const uint8_t* halves, const uint8_t* tile, int part, const Codebook* book) {
  Scales<T> read;
  if constexpr (T::kind == ScaleKind::f32) {
    read.scale[0] = load<F>((const float*)halves + part * W);
    read.offset[0] = load<F>((const float*)halves + STRIP + part * W);
    return read;
  }
  const uint16_t* d = (const uint16_t*)halves + part * W;
  const int8_t* sub = (const int8_t*)tile + part * W;
  UNROLL for (int g = 0; g < T::groups; g++) {
    const uint16_t* own = T::is_super ? d : d + STRIP * g;
    read.scale[g] = T::kind == ScaleKind::bf16 ? load_bf16(own) : load_half(own);
    if constexpr (T::is_super) read.scale[g] *= load_bytes(sub + 16 * g);
    if constexpr (T::has_book) read.scale[g] *= all(book->factor);
    if constexpr (T::has_offset) {
      read.offset[g] = load_half(d + 16);
      if constexpr (T::is_super) read.offset[g] = -(read.offset[g] * load_bytes(sub + 16 * (T::groups + g)));
    }
  }
  return read;
}

}  // namespace edgeinfer::ISA
