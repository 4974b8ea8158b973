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

// x ~ codes * scale. A block that holds an infinity or a NaN becomes zeros with a NaN for scale.
INLINE void quantize_block(const float* x, QuantBlock* out) {
  const float most = peak(x);
  const bool finite = most <= 3.402823466e38f;
  const float scale = finite ? most / 127.0f : __builtin_nanf("");
  const float inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
  const F magic = all(12582912.0f);
  const bool zero = !finite || !(inverse <= 3.402823466e38f);
  int sums[2] = {};
  for (int half = 0; half < 2; half++) {
    I sum = {};
    UNROLL for (int i = 16 * half; i < 16 * half + 16; i += W) {
      const I code = zero ? I{} : as_int(load<F>(x + i) * all(inverse) + magic) - as_int(magic);
      store(out->codes + i, __builtin_convertvector(code, Bytes));
      sum += code;
    }
    sums[half] = total(sum);
  }
  out->scale = scale;
  out->sums[0] = (int16_t)sums[0];
  out->sums[1] = (int16_t)sums[1];
  out->first_half = scale * (float)sums[0];
  out->both_halves = scale * (float)(sums[0] + sums[1]);
}

}  // namespace edgeinfer::ISA
