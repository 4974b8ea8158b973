// A tile of a product of many rows: 32 rows of x by 32 of the matrix, 4 simdgroups of 16 by 16 each.
#pragma once
#include <metal_simdgroup_matrix>

#include "chunk.h"

namespace qmm {

CODEC_CONSTANT int tile = 32;
CODEC_CONSTANT int stride = tile + 4;  // rows of a tile start in different banks
CODEC_CONSTANT int threads = 128;

using Fragment = metal::simdgroup_matrix<float, 8, 8>;

// x[row .. row + 32][k .. k + 32] to left, zero where there is nothing.
template <typename T>
inline void load_left(threadgroup float* left, const device T* x, int rows, int columns, int k, int index) {
  const int m = index / 4;
  const int first = index % 4 * 8;
  const bool there = m < rows && k + first < columns;
  for (int j = 0; j < 8; j++) left[m * stride + first + j] = there ? float(x[ulong(m) * columns + k + first + j]) : 0.0f;
}

// w[output .. output + 32][k .. k + 32], decoded and turned, to right.
template <typename Codec>
inline void load_right(threadgroup float* right, const device uint8_t* w, int outputs, int columns, int k, int index) {
  const int n = index / 4;
  const int first = index % 4 * 8;
  const bool there = n < outputs && k + first < columns;
  Chunk<Codec> chunk;
  if (there) chunk.unpack(w + ulong(n) * (columns / Codec::weights * Codec::bytes), (k + first) / 8);
  for (int j = 0; j < 8; j++) right[(first + j) * stride + n] = there ? chunk.weight(j) : 0.0f;
}

// A simdgroup's quarter of the tile.
struct Quarter {
  Fragment sum[2][2];

  void clear() {
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 2; j++) sum[i][j] = Fragment(0.0f);
  }

  void multiply(const threadgroup float* left, const threadgroup float* right) {
    for (int k = 0; k < tile; k += 8) {
      Fragment a[2];
      Fragment b[2];
      for (int i = 0; i < 2; i++) metal::simdgroup_load(a[i], left + i * 8 * stride + k, stride);
      for (int j = 0; j < 2; j++) metal::simdgroup_load(b[j], right + k * stride + j * 8, stride);
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) metal::simdgroup_multiply_accumulate(sum[i][j], a[i], b[j], sum[i][j]);
    }
  }

  void store(threadgroup float* to) {
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 2; j++) metal::simdgroup_store(sum[i][j], to + i * 8 * stride + j * 8, stride);
  }
};

}  // namespace qmm
