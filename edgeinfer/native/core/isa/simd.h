// One vector type for every instruction set: native width, written with the compiler's own vectors, so that arithmetic
// needs no names. What the compilers cannot express (four-way dot products, fused multiply-add, float16) is here.
//
// The files of this folder are compiled once per instruction set, each time into a namespace of its own (ISA). They
// include no library header: the linker merges inline functions, and could keep the AVX-512 copy for every caller.
#pragma once

#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#ifndef ISA
#error "compile with -DISA=<namespace>"
#endif
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

namespace edgeinfer::ISA {

#if defined(__AVX512VNNI__)
constexpr int W = 16;
constexpr int MAX_ROWS = 16;  // of activations that one pass over a strip can keep in registers
constexpr int ATTEND_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int MAX_ROWS = 4;
constexpr int ATTEND_VECTORS = 2;
#else
constexpr int W = 4;
constexpr int MAX_ROWS = 8;
constexpr int ATTEND_VECTORS = 4;
#endif
constexpr int PARTS = 16 / W;  // vectors that make 16 lanes

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef int8_t Bytes __attribute__((vector_size(W)));
typedef uint16_t Shorts __attribute__((vector_size(2 * W)));

template <typename Vector>
INLINE Vector load(const void* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <typename Vector>
INLINE void store(void* to, Vector v) { __builtin_memcpy(to, &v, sizeof v); }

INLINE F all(float value) { return value - F{}; }  // unlike + 0, which makes 0 of -0, it costs nothing
INLINE I all(int32_t value) { return I{} + value; }
INLINE F to_float(I v) { return __builtin_convertvector(v, F); }
INLINE I to_int(F v) { return __builtin_convertvector(v, I); }
INLINE F as_float(I v) { return (F)v; }
INLINE I as_int(F v) { return (I)v; }
INLINE F load_bytes(const int8_t* from) { return to_float(__builtin_convertvector(load<Bytes>(from), I)); }
INLINE F load_bf16(const uint16_t* from) {
  return (F)(__builtin_convertvector(load<Shorts>(from), U) << 16);
}

// a * b + c, rounded once where the hardware can.
INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// Lane i of the result is lane i ^ half.
template <int half>
INLINE F crossed(F v) {
  F result;
#if defined(__clang__)
  UNROLL for (int i = 0; i < W; i++) result[i] = v[i ^ half];
#else
  I lanes;
  UNROLL for (int i = 0; i < W; i++) lanes[i] = i ^ half;
  result = __builtin_shuffle(v, lanes);
#endif
  return result;
}

// The larger of two; a NaN in `b` wins.
INLINE F max(F a, F b) { return a > b ? a : b; }

INLINE F load_half(const uint16_t* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(__ARM_NEON)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  const U half = __builtin_convertvector(load<Shorts>(from), U);
  const U rest = (half & 0x7fff) << 13;
  const U mended = (U)((F)rest * 0x1p112f);
  return (F)((half & 0x8000) << 16 | ((half & 0x7c00) == 0x7c00 ? rest | 0x7f800000u : mended));
#endif
}

// float16, rounded to nearest, ties to even.
INLINE void store_half(uint16_t* to, F v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
  vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(v)));
#else
  const U sign = (U)v >> 16 & 0x8000;
  const U size = (U)v & 0x7fffffff;
  const U normal = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
  const U subnormal = (U)((F)size + 0.5f) - 0x3f000000;
  U half = size < 0x38800000 ? subnormal : normal;
  half = size >= 0x47800000 ? (size > 0x7f800000 ? U{} + 0x7e00 : U{} + 0x7c00) : half;
  store(to, __builtin_convertvector(sign | half, Shorts));
#endif
}

// Per lane: sum += w[0] x[0] + … + w[3] x[3], bytes of the lane; every w is in 0 … 127 and x in -127 … 127.
INLINE I dot4(I sum, I w, I x) {
#if defined(__AVX512VNNI__)
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__)
  return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)x);
  return sum + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
#else
  const I low = w << 24 >> 24, second = w << 16 >> 24, third = w << 8 >> 24, high = w >> 24;
  return sum + low * (x << 24 >> 24) + second * (x << 16 >> 24) + third * (x << 8 >> 24) + high * (x >> 24);
#endif
}

// The same for w in -128 … 127. Where the hardware wants unsigned w, they are passed with SIGNED_BIAS added (by xor),
// and the caller takes SIGNED_BIAS times the sum of x off again.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int SIGNED_BIAS = 128;
#else
constexpr int SIGNED_BIAS = 0;
#endif
INLINE I dot4_signed(I sum, I w, I x) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
  const __m256i size = _mm256_abs_epi8((__m256i)w);
  const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8((__m256i)x, (__m256i)w));
  return sum + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  return dot4(sum, w, x);
#endif
}

// Over all lanes.
INLINE int32_t largest(I v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)v);
#elif defined(__ARM_NEON)
  return vmaxvq_s32(v);
#else
  int32_t most = v[0];
  UNROLL for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

INLINE int32_t total(I v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#elif defined(__ARM_NEON)
  return vaddvq_s32(v);
#else
  int32_t sum = v[0];
  UNROLL for (int i = 1; i < W; i++) sum += v[i];
  return sum;
#endif
}

// Sixteen lanes whatever the width, so that sums over them have the same order everywhere.
struct Lanes {
  F part[PARTS];
};

INLINE float sum(const Lanes& lanes) {
  float v[16];
  for (int p = 0; p < PARTS; p++) store(v + p * W, lanes.part[p]);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

}  // namespace edgeinfer::ISA
