// The code of a row of rotated keys or values: cache/codecs/uniform.py, sum by sum in the same order.
#pragma once
#include "pages.h"
#include "rotation.h"

namespace seal {

CODEC_CONSTANT int strip = 16;  // rows that are coded together
CODEC_CONSTANT int tried = 12;  // steps

// The step of least error for a Gaussian of unit variance.
template <int Bits>
struct Gaussian {
  CODEC_CONSTANT float step = Bits == 3 ? 0.586f : Bits == 4 ? 0.335f : Bits == 5 ? 0.188f : 0.104f;
};

// Step number i as a share of that: 0.70 + 0.06 i, rounded once.
CODEC_TABLE float shares[tried] = {0.70f, 0.76f, 0.82f, 0.88f, 0.94f, 1.00f, 1.06f, 1.12f, 1.18f, 1.24f, 1.30f, 1.36f};

inline float inverse(float step) {
  const float one = 1.0f / step;
  return step > 0 && one <= 3.4e38f ? one : 0.0f;
}

// As a whole number; a NaN becomes the lowest.
template <int Bits>
inline float code_of(float y, float inverse) {
  const float most = float(1 << (Bits - 1));
  float code = metal::floor(y * inverse);
  code = code > -most ? code : -most;
  return code < most - 1 ? code : most - 1;
}

template <int Bits>
struct Sums {
  float product;
  float squares;

  // Of a group of `count` numbers with the levels that a step gives them.
  void add(const threadgroup float* y, int count, float inverse) {
    product = 0;
    squares = 0;
    for (int d = 0; d < count; d++) {
      const float level = code_of<Bits>(y[d], inverse) + 0.5f;
      product += y[d] * level;
      squares += level * level;
    }
  }
};

// 32 tokens of one head to codes without sign, [token][channel], and their scales, [group][token].
template <typename Format, int Bits>
struct Strip {
  CODEC_CONSTANT int stride = Format::size + 1;
  CODEC_CONSTANT int items = strip * Format::groups;  // groups of a strip

  // y: strip * stride; energy: items; kept: items * tried. All threads of the threadgroup take part.
  static void run(const device half* rows, const device float* signs, threadgroup float* y, threadgroup float* energy,
                  threadgroup float* kept, threadgroup uint8_t* codes, threadgroup float* scales, bool keys, int index,
                  int threads) {
    for (int first = 0; first < 32; first += strip) {
      rotate(rows + first * Format::size, signs, y, index, threads);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      measure(y, energy, index, threads);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      if (Bits < 8) search(y, energy, kept, index, threads);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      finish(y, energy, kept, codes + first * Format::size, scales + first, keys, index, threads);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }

  static void rotate(const device half* rows, const device float* signs, threadgroup float* y, int index, int threads) {
    const int lane = index % 32;
    for (int row = index / 32; row < strip; row += threads / 32) {
      threadgroup float* mine = y + row * stride;
      for (int d = lane; d < Format::size; d += 32) mine[d] = float(rows[row * Format::size + d]) * signs[d];
      rotation::transform<Format::size>(mine, lane);
      for (int d = lane; d < Format::size; d += 32) mine[d] *= rotation::Blocks<Format::size>::norm;
    }
  }

  // Where group `item` of the strip starts.
  static int place(int item) { return item % strip * stride + item / strip * Format::span; }

  static void measure(const threadgroup float* y, threadgroup float* energy, int index, int threads) {
    for (int item = index; item < items; item += threads) {
      float sum = 0;
      for (int d = 0; d < Format::span; d++) sum += y[place(item) + d] * y[place(item) + d];
      energy[item] = sum;
    }
  }

  static float step_inverse(float energy, int i) {
    const float sigma = metal::precise::sqrt(energy / float(int(Format::span)));
    return inverse(sigma * (Gaussian<Bits>::step * shares[i]));
  }

  // The share of a group's energy that each step keeps, with the best scale.
  static void search(const threadgroup float* y, const threadgroup float* energy, threadgroup float* kept, int index,
                     int threads) {
    for (int i = index; i < items * tried; i += threads) {
      Sums<Bits> sums;
      sums.add(y + place(i / tried), Format::span, step_inverse(energy[i / tried], i % tried));
      kept[i] = sums.product * sums.product / sums.squares;
    }
  }

  // At 8 bits the step follows from the largest number; else it is the first of the best.
  static float chosen(const threadgroup float* y, float energy, const threadgroup float* kept) {
    if (Bits == 8) {
      float peak = 0;
      for (int d = 0; d < Format::span; d++) peak = metal::abs(y[d]) > peak ? metal::abs(y[d]) : peak;
      return inverse(peak / 127.5f);
    }
    float best = -1;
    float found = 0;
    for (int i = 0; i < tried; i++)
      if (kept[i] > best) {
        best = kept[i];
        found = step_inverse(energy, i);
      }
    return found;
  }

  static void finish(const threadgroup float* y, const threadgroup float* energy, const threadgroup float* kept,
                     threadgroup uint8_t* codes, threadgroup float* scales, bool keys, int index, int threads) {
    for (int item = index; item < items; item += threads) {
      const threadgroup float* mine = y + place(item);
      const float step = chosen(mine, energy[item], kept + item * tried);
      Sums<Bits> sums;
      sums.add(mine, Format::span, step);
      for (int d = 0; d < Format::span; d++)
        codes[item % strip * Format::size + item / strip * Format::span + d] =
            uint8_t(int(code_of<Bits>(mine[d], step)) + (1 << (Bits - 1)));
      float scale = keys ? energy[item] / sums.product : sums.product / sums.squares;
      scale = energy[item] == 0 ? 0.0f : scale;
      scales[item / strip * 32 + item % strip] = scale > 65504.0f && scale < INFINITY ? 65504.0f : scale;
    }
  }
};

// Tiles of [16 tokens][32 channels] from 32 tokens, of which the first is `first` in its page.
template <typename Format>
inline void pack_keys(device uint8_t* page, const threadgroup uint8_t* codes, int first, int index, int threads) {
  for (int i = index; i < 32 * Format::key_columns; i += threads) {
    const int column = i / 16 % Format::key_columns;
    const int token = i / (16 * Format::key_columns) * 16 + i % 16;
    pages::Codes<Format::key_bits> row;
    row.clear();
    for (int j = 0; j < 32; j++) {
      const int d = column * 32 + j;
      row.put(j, d < Format::size ? int(codes[token * Format::size + d]) : 1 << (Format::key_bits - 1));
    }
    row.store(page + ((first + token) / 16 * Format::key_columns + column) * Format::key_tile, token % 16);
  }
}

// Tiles of [16 channels][32 tokens].
template <typename Format>
inline void pack_values(device uint8_t* page, const threadgroup uint8_t* codes, int first, int index, int threads) {
  for (int d = index; d < Format::size; d += threads) {
    pages::Codes<Format::value_bits> row;
    row.clear();
    for (int t = 0; t < 32; t++) row.put(t, int(codes[t * Format::size + d]));
    row.store(page + Format::value_codes + (d / 16 * (pages::page / 32) + first / 32) * Format::value_tile, d % 16);
  }
}

template <typename Format>
inline void store_scales(device uint8_t* to, const threadgroup float* scales, int first, int index, int threads) {
  for (int i = index; i < Format::groups * 32; i += threads)
    ((device half*)to)[i / 32 * pages::page + first + i % 32] = half(scales[i]);
}

}  // namespace seal
