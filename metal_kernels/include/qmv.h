// Products of a few rows with a packed matrix. A simdgroup owns `Outputs` rows of the matrix and walks along them 256
// weights at a time: its lanes copy those bytes to threadgroup memory, each byte once, and unpack 8 weights each, once
// for all `Rows` rows of x.
//
// With a norm, x is x * gain, and the sums are divided by the root of x's mean square in the end: rms_norm(x) @ w.T
// without a pass of its own (Zhang and Sennrich, 2019).
//
// A row's sum takes the same steps in the same order whatever `Rows` and `Outputs` are, with every product fused into
// its sum by hand, so that it has the same bits alone and among others.
#pragma once
#include "stage.h"

template <typename Codec, typename T, int Rows, int Outputs>
struct Qmv {
  float sum[Rows][Outputs];
  float squares[Rows];

  // w: the first of this simdgroup's rows of the matrix, of which `present` exist. x: rows of `columns`, of which
  // `rows` exist. gain: `columns`, with a norm. staged: Outputs * Stage<Codec>::halves, this simdgroup's own.
  void run(const device uint8_t* w, const device T* x, const device float* gain, threadgroup ushort* staged, int columns,
           int present, int rows, int lane, bool norm) {
    for (int m = 0; m < Rows; m++) {
      for (int n = 0; n < Outputs; n++) sum[m][n] = 0;
      squares[m] = 0;
    }
    for (int start = 0; start < columns; start += Stage<Codec>::weights) {
      const int weights = metal::min(columns - start, int(Stage<Codec>::weights));
      Stage<Codec>::load(staged, w, present, columns, start, lane, 32);
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
      if (lane * 8 < weights) {
        const int first = start + lane * 8;
        add((const threadgroup uint8_t*)staged, x + first, gain + first, columns, present, rows, lane, norm);
      }
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }

  // Loops run over all that there could be, so that `sum` is indexed by constants once they are unrolled.
  void add(const threadgroup uint8_t* staged, const device T* x, const device float* gain, int columns, int present,
           int rows, int lane, bool norm) {
    Chunk<Codec> chunk[Outputs];
    for (int n = 0; n < Outputs; n++)
      if (n < present) chunk[n].unpack(staged + n * Stage<Codec>::bytes, lane);
    for (int m = 0; m < Rows; m++)
      if (m < rows) {
        float value[8];
        float total = 0;
        for (int j = 0; j < 8; j++) value[j] = float(x[ulong(m) * columns + j]);
        if (norm) {
          for (int j = 0; j < 8; j++) squares[m] = metal::fma(value[j], value[j], squares[m]);
          for (int j = 0; j < 8; j++) value[j] *= gain[j];
        }
        for (int j = 0; j < 8; j++) total += value[j];
        for (int n = 0; n < Outputs; n++)
          if (n < present) sum[m][n] = add_one(chunk[n], value, total, sum[m][n]);
      }
  }

  static float add_one(thread const Chunk<Codec>& chunk, thread const float* value, float total, float sum) {
    float dot = 0;
    for (int j = 0; j < 8; j++) dot = metal::fma(chunk.code[j], value[j], dot);
    const float scaled = metal::fma(chunk.scale, dot, sum);
    return Codec::has_offset ? metal::fma(chunk.offset, total, scaled) : scaled;
  }

  // The sum of row m and row n of the matrix, in every lane.
  float result(int m, int n, int columns, float eps, bool norm) const {
    const float whole = metal::simd_sum(sum[m][n]);
    if (!norm) return whole;
    return whole * metal::precise::rsqrt(metal::simd_sum(squares[m]) / float(columns) + eps);
  }
};
