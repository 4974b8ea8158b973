// Work on whole rows of activations: RMS norm, and bytes with a scale for every 32.
#pragma once

#include "../calls.h"
#include "simd.h"

namespace edgeinfer::ISA {

// 1 / sqrt(mean(x^2) + eps)
INLINE float inverse_rms(const float* x, int n, float eps) {
  Lanes squares = {};
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int p = 0; p < PARTS; p++) {
      const F v = load<F>(x + i + p * W);
      squares.part[p] = fma(v, v, squares.part[p]);
    }
  float total = sum(squares);
  for (; i < n; i++) total += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(total / (float)n + eps);
}

// out = x * factor * weight
INLINE void scale_row(const float* x, const float* weight, float factor, int n, float* out) {
  int i = 0;
  for (; i + W <= n; i += W) store(out + i, load<F>(x + i) * all(factor) * load<F>(weight + i));
  for (; i < n; i++) out[i] = x[i] * factor * weight[i];
}

INLINE void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
  scale_row(x, weight, inverse_rms(x, n, eps), n, out);
}

// The largest |x| of a block. As integers, because there a NaN is larger than anything.
INLINE float peak(const float* x) {
  I most = {};
  for (int i = 0; i < BLOCK; i += W) {
    const I size = load<I>(x + i) & 0x7fffffff;
    most = size > most ? size : most;
  }
  return __builtin_bit_cast(float, largest(most));
}

constexpr int TOGETHER = 16;  // blocks whose scales are found at once: a reduction or a division for each costs more

// x ~ codes * scale, for up to TOGETHER blocks that follow each other; `stride` blocks lie from one to the next in `out`.
// A block that holds an infinity or a NaN gets a NaN for scale, and any codes.
INLINE void quantize_blocks(const float* x, int count, QuantBlock* out, int stride) {
  alignas(64) float peaks[TOGETHER] = {}, scales[TOGETHER], inverses[TOGETHER];
  alignas(64) int8_t codes[TOGETHER + 1][BLOCK];
  alignas(64) int32_t sums[TOGETHER + 1][BLOCK / 4];  // of four codes each
  for (int b = 0; b < count; b++) peaks[b] = peak(x + b * BLOCK);
  for (int i = 0; i < TOGETHER; i += W) {
    const F most = load<F>(peaks + i);
    const F scale = most <= all(3.402823466e38f) ? most / 127.0f : all(__builtin_nanf(""));
    const F inverse = 1.0f / scale;
    store(scales + i, scale);
    store(inverses + i, (scale > 0) & (inverse <= all(3.402823466e38f)) ? inverse : F{});
  }
  const F magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  for (int b = 0; b < count; b++)
    UNROLL for (int i = 0; i < BLOCK; i += W) {
      const I code = as_int(load<F>(x + b * BLOCK + i) * all(inverses[b]) + magic) - as_int(magic);
      store(codes[b] + i, __builtin_convertvector(code, Bytes));
    }
  for (int i = 0; i < BLOCK; i++) codes[count][i] = 0;  // a vector may hold two blocks
  for (int i = 0; i < count * BLOCK / 4; i += W)
    store(sums[0] + i, dot4(I{}, all(0x01010101), load<I>(codes[0] + 4 * i)));
  for (int b = 0; b < count; b++, out += stride) {
    const int32_t* four = sums[b];
    const int first = four[0] + four[1] + four[2] + four[3], second = four[4] + four[5] + four[6] + four[7];
    __builtin_memcpy(out->codes, codes[b], BLOCK);
    out->scale = scales[b];
    out->sums[0] = (int16_t)first;
    out->sums[1] = (int16_t)second;
    out->first_half = scales[b] * (float)first;
    out->both_halves = scales[b] * (float)(first + second);
  }
}

}  // namespace edgeinfer::ISA
