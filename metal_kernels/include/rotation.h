// How queries, keys and values are rotated: random signs, then an orthonormal Walsh-Hadamard transform of each block of
// as many channels as the largest power of two that divides a head (cache/codecs/uniform.py). It is its own inverse.
#pragma once
#include "codecs/base.h"

namespace rotation {

template <int Size>
struct Blocks {
  CODEC_CONSTANT int size = Size & -Size;
  CODEC_CONSTANT float norm = size == 16    ? 0.25f
                              : size == 32  ? 0.17677669529663687f
                              : size == 64  ? 0.125f
                              : size == 128 ? 0.08838834764831845f
                                            : 0.0625f;
};

// A head in threadgroup memory, by the lanes of one simdgroup; the sums are still to be multiplied by the norm.
template <int Size>
inline void transform(threadgroup float* x, int lane) {
  for (int distance = 1; distance < Blocks<Size>::size; distance *= 2) {
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (int i = lane; i < Size / 2; i += 32) {
      const int at = i / distance * 2 * distance + i % distance;
      const float low = x[at];
      const float high = x[at + distance];
      x[at] = low + high;
      x[at + distance] = low - high;
    }
  }
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

}  // namespace rotation
