// What a gate passes through, by its place in the table ACTIVATIONS of specs.py.
#pragma once
#include "codecs/base.h"

namespace activation {

inline float silu(float x) { return x / (1 + metal::precise::exp(-x)); }

// The tanh form (Hendrycks and Gimpel, 2016).
inline float gelu(float x) {
  return 0.5f * x * (1 + metal::precise::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

template <int which>
inline float of(float x) { return which == 0 ? silu(x) : gelu(x); }

}  // namespace activation
