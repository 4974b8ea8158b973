// A tile of a product of many rows: `Rows` rows of x by 32 of the matrix, 4 simdgroups of half as many by 16 each.
#pragma once
#include <metal_simdgroup_matrix>

#include "stage.h"

namespace qmm {

CODEC_CONSTANT int outputs = 32;  // rows of the matrix
CODEC_CONSTANT int depth = 32;    // weights of each that are multiplied at once
CODEC_CONSTANT int stride = depth + 4;  // rows of a tile start in different banks
CODEC_CONSTANT int threads = 128;

using Fragment = metal::simdgroup_matrix<float, 8, 8>;
template <typename Codec>
using Step = Stage<Codec, 64>;

// x[row .. row + Rows][k .. k + 32] to left, zero where there is nothing.
template <int Rows, typename T>
inline void load_left(threadgroup float* left, const device T* x, int rows, int columns, int k, int index) {
  const int first = index % 4 * 8;
  for (int m = index / 4; m < Rows; m += threads / 4) {
    const bool there = m < rows && k + first < columns;
    for (int j = 0; j < 8; j++) left[m * stride + first + j] = there ? float(x[ulong(m) * columns + k + first + j]) : 0.0f;
  }
}

// Weights k .. k + 32 of a step of 32 staged rows of the matrix, decoded and turned, to right; `left_over` of a step exist.
template <typename Codec>
inline void load_right(threadgroup float* right, const threadgroup uint8_t* staged, int present, int left_over, int k,
                       int index) {
  const int n = index / 4;
  const int first = index % 4 * 8;
  const bool there = n < present && k + first < left_over;
  Chunk<Codec> chunk;
  if (there) chunk.unpack(staged + n * Step<Codec>::bytes, (k + first) / 8);
  for (int j = 0; j < 8; j++) right[(first + j) * stride + n] = there ? chunk.weight(j) : 0.0f;
}

template <typename Codec, int Rows>
struct Tile {
  CODEC_CONSTANT int high = Rows / 16;  // fragments of a simdgroup's part
  Fragment sum[high][2];

  // w: the first of `present` rows of the matrix; x: the first of `rows`. All threads of the threadgroup take part.
  template <typename T>
  void run(const device uint8_t* w, const device T* x, threadgroup float* left, threadgroup float* right,
           threadgroup ushort* staged, int columns, int present, int rows, int index, int simdgroup) {
    for (int i = 0; i < high; i++)
      for (int j = 0; j < 2; j++) sum[i][j] = Fragment(0.0f);
    for (int start = 0; start < columns; start += Step<Codec>::weights) {
      const int weights = metal::min(columns - start, int(Step<Codec>::weights));
      Step<Codec>::load(staged, w, present, columns, start, index, threads);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      for (int k = 0; k < weights; k += depth) {
        load_left<Rows>(left, x, rows, columns, start + k, index);
        load_right<Codec>(right, (const threadgroup uint8_t*)staged, present, weights, k, index);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        multiply(left + simdgroup / 2 * high * 8 * stride, right + simdgroup % 2 * 16);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      }
    }
    store(left + simdgroup / 2 * high * 8 * stride + simdgroup % 2 * 16);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }

  void multiply(const threadgroup float* left, const threadgroup float* right) {
    for (int k = 0; k < depth; k += 8) {
      Fragment b[2];
      for (int j = 0; j < 2; j++) metal::simdgroup_load(b[j], right + k * stride + j * 8, stride);
      for (int i = 0; i < high; i++) {
        Fragment a;
        metal::simdgroup_load(a, left + i * 8 * stride + k, stride);
        for (int j = 0; j < 2; j++) metal::simdgroup_multiply_accumulate(sum[i][j], a, b[j], sum[i][j]);
      }
    }
  }

  void store(threadgroup float* to) {
    for (int i = 0; i < high; i++)
      for (int j = 0; j < 2; j++) metal::simdgroup_store(sum[i][j], to + i * 8 * stride + j * 8, stride);
  }
};

}  // namespace qmm
