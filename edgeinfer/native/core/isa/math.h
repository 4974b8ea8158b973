// exp and what is made of it, to about two units in the last place.
#pragma once

#include "simd.h"

namespace edgeinfer::ISA {

// e^x = 2^n e^r with |r| <= ln(2) / 2; ln 2 is taken off in two parts (Cody and Waite, 1980), e^r is its Taylor series.
INLINE F exp(F x) {
  x = x < all(-87.0f) ? all(-87.0f) : x;
  x = x > all(88.0f) ? all(88.0f) : x;
  const F magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const F n = fma(x, all(1.44269504f), magic) - magic;
  F r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  F series = all(1.0f / 5040);
  series = fma(series, r, all(1.0f / 720));
  series = fma(series, r, all(1.0f / 120));
  series = fma(series, r, all(1.0f / 24));
  series = fma(series, r, all(1.0f / 6));
  series = fma(series, r, all(0.5f));
  series = fma(series, r, all(1.0f));
  series = fma(series, r, all(1.0f));
  return series * as_float((as_int(n + magic) - as_int(magic) + 127) << 23);
}

INLINE F silu(F x) { return x / (1.0f + exp(-x)); }

// x (1 + tanh(y)) / 2 = x / (1 + exp(-2y)) with y = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016).
INLINE F gelu(F x) {
  const F y = 0.7978845608f * fma(all(0.044715f) * x * x, x, x);
  return x / (1.0f + exp(-2.0f * y));
}

INLINE F tanh(F x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

}  // namespace edgeinfer::ISA
