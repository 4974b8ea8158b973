// Sealed pages: 128 tokens of one KV head in codes. The layout is that of edgeinfer/native/core/sealed.h:
//
//   codes of keys      tiles of [16 tokens][32 channels], those of the same tokens one after the other
//   codes of values    tiles of [16 channels][32 tokens], those of the same channels one after the other
//   scales             float16, of keys [group][token], of values [group][token]
//
// A row of a tile is 32 codes in as many words of 4 bytes as a code has bits, 16 words apart. Codes of 3, 5 and 6 bits
// are split in planes, lowest bits first, so that no field lies across two bytes.
#pragma once
#include "codecs/base.h"

namespace pages {

CODEC_CONSTANT int page = 128;   // tokens
CODEC_CONSTANT int sinks = 128;  // first tokens, which are never sealed
CODEC_CONSTANT int tail = 256;   // latest tokens that a token sees as they are, at least

// The first position behind the sinks that a row at `position` sees as it is.
inline int frontier(int position) { return metal::max(int(sinks), (position + 1 - tail) / page * page); }

template <int Size, int KeyBits, int ValueBits>
struct Format {
  CODEC_CONSTANT int size = Size;
  CODEC_CONSTANT int key_bits = KeyBits;
  CODEC_CONSTANT int value_bits = ValueBits;
  CODEC_CONSTANT int groups = (Size + 127) / 128;  // scales of a row
  CODEC_CONSTANT int span = Size / groups;         // channels that share one
  CODEC_CONSTANT int key_columns = (Size + 31) / 32;  // tiles that 16 tokens take
  CODEC_CONSTANT int key_tile = 64 * KeyBits;
  CODEC_CONSTANT int value_tile = 64 * ValueBits;
  CODEC_CONSTANT int value_codes = page / 16 * key_columns * key_tile;  // where each part starts
  CODEC_CONSTANT int key_scales = value_codes + Size / 16 * (page / 32) * value_tile;
  CODEC_CONSTANT int value_scales = key_scales + 2 * groups * page;
  CODEC_CONSTANT int bytes = value_scales + 2 * groups * page;
};

// A row of a tile: 32 codes, each c + 2^(Bits - 1) with c in -2^(Bits - 1) ... 2^(Bits - 1) - 1.
template <int Bits>
struct Codes {
  CODEC_CONSTANT int low = Bits == 8 ? 8 : Bits == 3 ? 2 : 4;
  CODEC_CONSTANT int high = Bits - low;
  uint words[Bits];

  // Four codes that follow one another lie in one word, one a byte; where, of a plane of `width` bits.
  static int word(int width, int quad) { return width == 4 ? quad % 4 : width * quad / 8; }
  static int shift(int width, int quad) { return width == 4 ? quad / 4 * 4 : width * quad % 8; }

  void load(const device uint8_t* tile, int row) {
    for (int i = 0; i < Bits; i++) words[i] = ((const device uint*)(tile + 64 * i))[row];
  }

  void store(device uint8_t* tile, int row) const {
    for (int i = 0; i < Bits; i++) ((device uint*)(tile + 64 * i))[row] = words[i];
  }

  void clear() {
    for (int i = 0; i < Bits; i++) words[i] = 0;
  }

  int code(int column) const {
    const int quad = column / 4;
    const int byte = column % 4 * 8;
    int found = int(words[word(low, quad)] >> (byte + shift(low, quad))) & ((1 << low) - 1);
    if (high > 0)
      found |= (int(words[high > 0 ? low + word(high, quad) : 0] >> (byte + shift(high, quad))) & ((1 << high) - 1)) << low;
    return Bits == 8 ? found ^ 128 : found;
  }

  void put(int column, int value) {
    const int quad = column / 4;
    const int byte = column % 4 * 8;
    const int stored = Bits == 8 ? value ^ 128 : value;
    words[word(low, quad)] |= uint(stored & ((1 << low) - 1)) << (byte + shift(low, quad));
    if (high > 0) words[high > 0 ? low + word(high, quad) : 0] |= uint(stored >> low) << (byte + shift(high, quad));
  }

  // A code stands for c + 1/2 times the scale.
  float level(int column) const { return float(code(column) - (1 << (Bits - 1))) + 0.5f; }
};

// The scales of tokens first .. first + Tokens, [group][token], as float32.
template <typename Format, int Tokens>
inline void load_scales(threadgroup float* to, const device uint8_t* scales, int first, int index, int threads) {
  for (int i = index; i < Format::groups * Tokens; i += threads)
    to[i] = float(((const device half*)scales)[i / Tokens * page + first + i % Tokens]);
}

// The keys of tokens first .. first + Tokens, `stride` apart: levels, times `scales` where the element is a float.
template <typename Format, int Tokens, typename Element>
inline void load_keys(threadgroup Element* to, int stride, const threadgroup float* scales, const device uint8_t* codes,
                      int first, int index, int threads) {
  for (int i = index; i < Tokens * Format::key_columns; i += threads) {
    const int column = i / 16 % Format::key_columns;
    const int token = i / (16 * Format::key_columns) * 16 + i % 16;
    Codes<Format::key_bits> row;
    row.load(codes + ((first + token) / 16 * Format::key_columns + column) * Format::key_tile, token % 16);
    const bool scaled = sizeof(Element) == 4;
    const float scale = scaled ? scales[column * 32 / Format::span * Tokens + token] : 1.0f;
    for (int j = 0; j < 32; j++)
      if (column * 32 + j < Format::size) to[token * stride + column * 32 + j] = Element(row.level(j) * scale);
  }
}

// The same of values. Tokens is 32, or 16, of which each word is read twice.
template <typename Format, int Tokens, typename Element>
inline void load_values(threadgroup Element* to, int stride, const threadgroup float* scales, const device uint8_t* codes,
                        int first, int index, int threads) {
  for (int d = index; d < Format::size; d += threads) {
    Codes<Format::value_bits> row;
    row.load(codes + (d / 16 * (page / 32) + first / 32) * Format::value_tile, d % 16);
    const bool scaled = sizeof(Element) == 4;
    for (int t = 0; t < Tokens; t++) {
      const float scale = scaled ? scales[d / Format::span * Tokens + t] : 1.0f;
      to[t * stride + d] = Element(row.level(Tokens == 32 ? t : first % 32 + t) * scale);
    }
  }
}

}  // namespace pages
