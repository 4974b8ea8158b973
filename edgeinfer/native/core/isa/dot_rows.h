// Products of a strip with rows of activations. Each row and lane adds up in the order of the columns, whatever the
// number of rows: that is what makes results independent of the batch.
#pragma once

#include "tile.h"

namespace edgeinfer::ISA {

constexpr int PREFETCH = 4096;    // bytes ahead
constexpr int PREFETCH_ROWS = 4;  // with fewer the hardware's own prefetcher does better

template <class T>
INLINE I dot_half(I sum, const I w[4], const int8_t* codes) {
  UNROLL for (int c = 0; c < 4; c++) {
    int32_t four;
    __builtin_memcpy(&four, codes + 4 * c, 4);
    sum = T::is_signed ? dot4_signed(sum, w[c], all(four)) : dot4(sum, w[c], all(four));
  }
  return sum;
}

// One row's dot product with a tile, as integers: groups sums. With few rows the two halves of one group are chains of
// their own, to hide the latency; that they are integers makes the result the same.
template <class T, bool few>
INLINE void dot_tile(const I w[8], const QuantBlock& x, I dot[T::groups]) {
  constexpr int bias = T::is_signed ? SIGNED_BIAS : T::zero;
  if constexpr (T::groups == 2) {
    dot[0] = dot_half<T>(bias ? all(-bias * x.sums[0]) : I{}, w, x.codes);
    dot[1] = dot_half<T>(bias ? all(-bias * x.sums[1]) : I{}, w + 4, x.codes + 16);
  } else {
    const I start = bias ? all(-bias * (x.sums[0] + x.sums[1])) : I{};
    const I first = dot_half<T>(start, w, x.codes);
    dot[0] = few ? first + dot_half<T>(I{}, w + 4, x.codes + 16) : dot_half<T>(first, w + 4, x.codes + 16);
  }
}

template <class T, bool few>
INLINE F add_tile(F sum, const I w[8], const Scales<T>& scales, const QuantBlock& x) {
  I dot[T::groups];
  dot_tile<T, few>(w, x, dot);
  UNROLL for (int g = 0; g < T::groups; g++) sum = fma(to_float(dot[g]), scales.scale[g] * all(x.scale), sum);
  if constexpr (T::has_offset) {
    if constexpr (T::groups == 2) {
      sum = fma(scales.offset[0], all(x.first_half), sum);
      sum = fma(scales.offset[1], all(x.both_halves - x.first_half), sum);
    } else {
      sum = fma(scales.offset[0], all(x.both_halves), sum);
    }
  }
  return sum;
}

// M rows of x, `stride` blocks apart, against a strip of `columns` -> out (M, 16).
template <class T, int M>
static void dot_rows(const uint8_t* strip, int columns, const Codebook* book, const QuantBlock* x, int packed_rows,
                     float* out) {
  for (int part = 0; part < PARTS; part++) {
    F sums[M] = {};
    const uint8_t* at = strip;
    const QuantBlock* block = x;
    for (int column = 0; column < columns; column += T::columns) {
      const uint8_t* halves = at;
      if constexpr (T::is_super) at += T::half_bytes;
      for (int t = 0; t < T::tiles; t++, at += T::bytes, block += packed_rows) {
        if constexpr (M >= PREFETCH_ROWS)
          for (int line = 0; line < T::bytes; line += 64) __builtin_prefetch(at + PREFETCH + line);
        I w[8];
        const Scales<T> scales = read_scales<T>(T::is_super ? halves : at, at, part, book);
        read_codes<T>(at + (T::is_super ? T::sub_bytes : T::half_bytes), part, book, w);
        UNROLL for (int r = 0; r < M; r++) sums[r] = add_tile<T, (M < 3)>(sums[r], w, scales, block[r]);
      }
    }
    UNROLL for (int r = 0; r < M; r++) store(out + r * STRIP + part * W, sums[r]);
  }
}

enum class Plain { f32, f16, bf16 };
constexpr int PLAIN_ROWS = MAX_ROWS < 6 ? 2 : 6;

template <Plain kind>
INLINE F load_plain(const uint8_t* from) {
  if constexpr (kind == Plain::f32) return load<F>(from);
  if constexpr (kind == Plain::f16) return load_half((const uint16_t*)from);
  return load_bf16((const uint16_t*)from);
}

// The same for floats: x is (M, columns) row by row. Four sums a lane hide the latency of the multiply-add.
template <Plain kind, int M>
static void dot_rows_plain(const uint8_t* strip, int columns, const float* x, float* out) {
  constexpr int size = kind == Plain::f32 ? 4 : 2;
  for (int part = 0; part < PARTS; part++) {
    F sums[M][4] = {};
    const uint8_t* at = strip + part * W * size;
    int column = 0;
    for (; column + 4 <= columns; column += 4, at += 4 * STRIP * size)
      UNROLL for (int c = 0; c < 4; c++) {
        const F w = load_plain<kind>(at + c * STRIP * size);
        UNROLL for (int r = 0; r < M; r++) sums[r][c] = fma(w, all(x[(int64_t)r * columns + column + c]), sums[r][c]);
      }
    for (; column < columns; column++, at += STRIP * size) {
      const F w = load_plain<kind>(at);
      UNROLL for (int r = 0; r < M; r++) sums[r][0] = fma(w, all(x[(int64_t)r * columns + column]), sums[r][0]);
    }
    UNROLL for (int r = 0; r < M; r++)
      store(out + r * STRIP + part * W, (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
  }
}

}  // namespace edgeinfer::ISA
