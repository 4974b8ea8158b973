// The code of a page: rotated, its step searched, packed in planes. cache/codecs/uniform.py does the same in numpy, sum by
// sum, and gives the same bytes.
#pragma once

#include "../sealed_kernels.h"
#include "math.h"

namespace edgeinfer::ISA {

struct Rotation {  // ±1 by dimension: the top bits of a linear congruential generator (Knuth's MMIX)
  alignas(64) float sign[MAX_HEAD_DIM];
};

INLINE const Rotation& rotation() {
  static const Rotation made = [] {
    Rotation r;
    uint64_t state = 1;
    for (float& sign : r.sign) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sign = state >> 63 ? 1.0f : -1.0f;
    }
    return r;
  }();
  return made;
}

INLINE int rotated_block(int dim) { return dim & -dim; }

// Of lanes that are `half` apart: their sum in the lower one, lower - higher in the other.
template <int half>
INLINE F butterfly(F v) {
  I lane;
  UNROLL for (int i = 0; i < W; i++) lane[i] = i;
  return crossed<half>(v) + ((lane & half) != 0 ? -v : v);
}

// Walsh–Hadamard transform of each block of a row, orthonormal: its own inverse. Blocks are whole strips.
INLINE void transform_row(float* x, int dim) {
  const int block = rotated_block(dim);
  for (int d = 0; d < dim; d += W) {
    F v = butterfly<2>(butterfly<1>(load<F>(x + d)));
    if constexpr (W > 4) v = butterfly<4>(v);
    if constexpr (W > 8) v = butterfly<8>(v);
    store(x + d, v);
  }
  for (int first = 0; first < dim; first += block)
    for (int half = W; half < block; half *= 2)
      for (int i = first; i < first + block; i += 2 * half)
        for (int j = i; j < i + half; j += W) {
          const F low = load<F>(x + j), high = load<F>(x + j + half);
          store(x + j, low + high);
          store(x + j + half, low - high);
        }
  const F norm = all(float(1 / __builtin_sqrt(double(block))));
  for (int d = 0; d < dim; d += W) store(x + d, load<F>(x + d) * norm);
}

INLINE void rotate_row(float* x, int dim) {
  const float* sign = rotation().sign;
  for (int d = 0; d < dim; d++) x[d] *= sign[d];
  transform_row(x, dim);
}

INLINE void rotate_row_back(float* x, int dim) {
  transform_row(x, dim);
  const float* sign = rotation().sign;
  for (int d = 0; d < dim; d++) x[d] *= sign[d];
}

// The same of 16 rows at once: y is [dimension][row].
INLINE void rotate_columns(float (*y)[STRIP], int dim) {
  const int block = rotated_block(dim);
  const float* sign = rotation().sign;
  for (int d = 0; d < dim; d++)
    for (int p = 0; p < STRIP; p += W) store(y[d] + p, load<F>(y[d] + p) * all(sign[d]));
  for (int first = 0; first < dim; first += block)
    for (int half = 1; half < block; half *= 2)
      for (int i = first; i < first + block; i += 2 * half)
        for (int j = i; j < i + half; j++)
          UNROLL for (int p = 0; p < STRIP; p += W) {
            const F low = load<F>(y[j] + p), high = load<F>(y[j + half] + p);
            store(y[j] + p, low + high);
            store(y[j + half] + p, low - high);
          }
  const F norm = all(float(1 / __builtin_sqrt(double(block))));
  for (int d = 0; d < dim; d++)
    for (int p = 0; p < STRIP; p += W) store(y[d] + p, load<F>(y[d] + p) * norm);
}

INLINE F sqrt(F x) {
  for (int i = 0; i < W; i++) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

INLINE F floor(F x) {
  const F whole = to_float(to_int(x));  // |x| stays below 2^23, or is out of the codes' range anyway
  const F down = whole > x ? whole - 1.0f : whole;
  return (F)((I)x & 0x7fffffff) < all(8388608.0f) ? down : x;
}

INLINE F inverse_step(F step) {
  const F inverse = 1.0f / step;
  return (step > 0) & (inverse <= 3.4e38f) ? inverse : F{};
}

INLINE F code_of(F y, F inverse, float half) {
  F code = floor(y * inverse);
  code = code > -half ? code : all(-half);  // a NaN becomes the lowest code
  return code < half - 1 ? code : all(half - 1);
}

template <int bits> constexpr float gaussian_step = bits == 3 ? 0.586f : bits == 4 ? 0.335f : bits == 5 ? 0.188f : 0.104f;
constexpr int STEPS_TRIED = 12;

// Of W rows, `count` dimensions: the codes, and what sets the scale. y and codes are [dimension][STRIP].
template <int bits>
INLINE void quantize_columns(const float (*y)[STRIP], int count, bool keys, float (*codes)[STRIP], F* scale) {
  constexpr float half = 1 << (bits - 1);
  F energy = {};
  for (int d = 0; d < count; d++) energy += load<F>(y[d]) * load<F>(y[d]);
  F best_inverse;
  if constexpr (bits == 8) {
    F peak = {};
    for (int d = 0; d < count; d++) {
      const F size = (F)((I)load<F>(y[d]) & 0x7fffffff);
      peak = size > peak ? size : peak;
    }
    best_inverse = inverse_step(peak / 127.5f);
  } else {
    const F sigma = sqrt(energy / float(count));
    F best = all(-1.0f);
    best_inverse = F{};
    for (int i = 0; i < STEPS_TRIED; i++) {
      const F inverse = inverse_step(sigma * (gaussian_step<bits> * float(0.70 + 0.06 * i)));
      F product = {}, squares = {};
      for (int d = 0; d < count; d++) {
        const F x = load<F>(y[d]), level = code_of(x, inverse, half) + 0.5f;
        product += x * level;
        squares += level * level;
      }
      const F kept = product * product / squares;
      best_inverse = kept > best ? inverse : best_inverse;
      best = kept > best ? kept : best;
    }
  }
  F product = {}, squares = {};
  for (int d = 0; d < count; d++) {
    const F x = load<F>(y[d]), code = code_of(x, best_inverse, half), level = code + 0.5f;
    product += x * level;
    squares += level * level;
    store(codes[d], code);
  }
  F found = keys ? energy / product : product / squares;
  found = energy == 0 ? F{} : found;
  const F size = (F)((I)found & 0x7fffffff);
  *scale = (size < __builtin_inff()) & (found > 65504.0f) ? all(65504.0f) : found;
}

// 16 rows of 32 columns of codes without sign, (4 columns of a row side by side in a line), as planes.
template <int bits>
INLINE void pack_tile(const uint8_t (*codes)[BLOCK], uint8_t* tile) {
  for (int i = 0; i < 64 * bits; i++) tile[i] = 0;
  for (int row = 0; row < STRIP; row++)
    for (int column = 0; column < BLOCK; column++) {
      const int chunk = column / 4, at = 4 * row + column % 4;
      const uint8_t code = codes[row][column];
      if constexpr (bits == 8) {
        tile[64 * chunk + at] = code ^ 0x80;
      } else if constexpr (bits == 3) {
        tile[64 * (chunk / 4) + at] |= uint8_t((code & 3) << (2 * (chunk % 4)));
        tile[128 + at] |= uint8_t(code >> 2 << chunk);
      } else {
        tile[64 * (chunk % 4) + at] |= uint8_t((code & 15) << (4 * (chunk / 4)));
        if constexpr (bits == 5) tile[256 + at] |= uint8_t(code >> 4 << chunk);
        if constexpr (bits == 6) tile[256 + 64 * (chunk / 4) + at] |= uint8_t(code >> 4 << (2 * (chunk % 4)));
      }
    }
}

struct PageCodes {  // of one kv head, without sign
  uint8_t codes[PAGE][MAX_HEAD_DIM];
  alignas(64) float scales[MAX_HEAD_DIM / SCALE_GROUP][PAGE];
};

template <int bits>
static void quantize_page(const PageFormat& format, bool keys, const uint16_t* rows, PageCodes* out) {
  const int dim = format.head_dim, groups = format.groups(), count = dim / groups;
  alignas(64) float y[MAX_HEAD_DIM][STRIP], codes[MAX_HEAD_DIM][STRIP];
  for (int first = 0; first < PAGE; first += STRIP) {
    if (keys)
      for (int d = 0; d < dim; d++)
        for (int p = 0; p < STRIP; p += W) store(y[d] + p, load_half(rows + (int64_t)(first * dim + d * STRIP) + p));
    else
      for (int p = 0; p < STRIP; p++) {
        alignas(64) float row[MAX_HEAD_DIM];
        for (int d = 0; d < dim; d += W) store(row + d, load_half(rows + (int64_t)(first + p) * dim + d));
        for (int d = 0; d < dim; d++) y[d][p] = row[d];
      }
    rotate_columns(y, dim);
    for (int g = 0; g < groups; g++)
      for (int p = 0; p < STRIP; p += W) {
        F scale;
        quantize_columns<bits>((const float(*)[STRIP])(y[g * count] + p), count, keys,
                               (float(*)[STRIP])(codes[g * count] + p), &scale);
        store(out->scales[g] + first + p, scale);
      }
    for (int p = 0; p < STRIP; p++)
      for (int d = 0; d < dim; d++) out->codes[first + p][d] = uint8_t(int(codes[d][p]) + (1 << (bits - 1)));
  }
}

template <int bits>
static void seal_keys(const PageFormat& format, const uint16_t* rows, uint8_t* page, PageCodes* made) {
  quantize_page<bits>(format, true, rows, made);
  const int dim = format.head_dim;
  uint8_t tile[STRIP][BLOCK];
  for (int first = 0; first < PAGE; first += STRIP)
    for (int d = 0; d < dim; d += BLOCK, page += format.key_tile()) {
      for (int row = 0; row < STRIP; row++)
        for (int column = 0; column < BLOCK; column++)
          tile[row][column] = d + column < dim ? made->codes[first + row][d + column] : 1 << (bits - 1);
      pack_tile<bits>(tile, page);
    }
}

template <int bits>
static void seal_values(const PageFormat& format, const uint16_t* rows, uint8_t* page, PageCodes* made) {
  quantize_page<bits>(format, false, rows, made);
  uint8_t tile[STRIP][BLOCK];
  for (int d = 0; d < format.head_dim; d += STRIP)
    for (int first = 0; first < PAGE; first += BLOCK, page += format.value_tile()) {
      for (int row = 0; row < STRIP; row++)
        for (int column = 0; column < BLOCK; column++) tile[row][column] = made->codes[first + column][d + row];
      pack_tile<bits>(tile, page);
    }
}

INLINE void store_scales(const PageFormat& format, const PageCodes& made, uint8_t* to) {
  for (int g = 0; g < format.groups(); g++)
    for (int p = 0; p < PAGE; p += W) store_half((uint16_t*)to + g * PAGE + p, load<F>(made.scales[g] + p));
}

constexpr int VALUES = 16;  // more than any width

// The keys or the values of one kv head, from row `row` of the buffer on.
static void seal(const PageFormat& format, const CacheView& buffer, bool keys, int kv_head, int row, uint8_t* page) {
  const int64_t first = ((int64_t)kv_head * buffer.capacity + row) * format.head_dim;
  const uint16_t* rows = (keys ? buffer.keys : buffer.values) + first;
  uint8_t* codes = keys ? page : page + format.key_codes();
  PageCodes made;
  switch (keys ? format.key_bits : format.value_bits + VALUES) {
    case 3: seal_keys<3>(format, rows, codes, &made); break;
    case 4: seal_keys<4>(format, rows, codes, &made); break;
    case 5: seal_keys<5>(format, rows, codes, &made); break;
    case 6: seal_keys<6>(format, rows, codes, &made); break;
    case 8: seal_keys<8>(format, rows, codes, &made); break;
    case VALUES + 3: seal_values<3>(format, rows, codes, &made); break;
    case VALUES + 4: seal_values<4>(format, rows, codes, &made); break;
    default: seal_values<8>(format, rows, codes, &made);
  }
  store_scales(format, made, page + (keys ? format.key_scales_at() : format.value_scales_at()));
}

}  // namespace edgeinfer::ISA
