// Attention of a few query rows over pages of keys and values (online softmax: Milakov and Gimelshein, 2018).
//
// A threadgroup takes one KV head and one split of the tokens, in tiles of 32. Each tile is copied to threadgroup
// memory once for all queries of the KV head: those of its `groups` query heads in each of the rows. A simdgroup owns
// `Queries` of them; its lanes are the tokens of a tile for the scores, and the channels for the sums.
//
// Tiles and splits start at multiples of their size, whatever the length is: what a row does not see changes no bit of
// it, so that it has the same bits alone and among others.
#pragma once
#include "codecs/base.h"

namespace attention {

CODEC_CONSTANT int tile = 32;
CODEC_CONSTANT int page = 128;

inline float capped(float score, float softcap) {
  return softcap > 0 ? softcap * metal::precise::tanh(score / softcap) : score;
}

// What a row sees, and how its scores are made.
struct View {
  int length;  // tokens, the rows' own among them
  int rows;
  int window;  // 0: all
  float scale;
  float softcap;  // 0: none

  bool sees(int row, int token) const {
    const int place = length - rows + row;
    return token <= place && (window == 0 || token > place - window);
  }

  float score(float product) const { return capped(product * scale, softcap); }
};

// A tile of keys or values in threadgroup memory, rows `Size + 2` apart so that lanes hit different banks.
template <int Size>
struct HalfTile {
  CODEC_CONSTANT int stride = Size + 2;
  CODEC_CONSTANT int groups = (Size + 127) / 128;
  const threadgroup half* rows;

  // In as many sums as a sealed row has scales, so that a row has the same bits beside sealed pages.
  float dot(const device float* query, int token) const {
    float product = 0;
    for (int g = 0; g < groups; g++) {
      float sum = 0;
      for (int d = g * Size / groups; d < (g + 1) * Size / groups; d++)
        sum = metal::fma(query[d], float(rows[token * stride + d]), sum);
      product += sum;
    }
    return product;
  }

  float value(int token, int channel) const { return float(rows[token * stride + channel]); }

  // What 32 channels of a token are multiplied by.
  float scale(int, int) const { return 1.0f; }
};

// The first `present` tokens behind `from` to a tile of `Tokens`, `stride` apart; zero behind them.
template <int Size, int Tokens, typename Element>
inline void load(threadgroup Element* to, int stride, const device half* from, int present, int index, int threads) {
  for (int i = index; i < Tokens * Size; i += threads)
    to[i / Size * stride + i % Size] = i < present * Size ? Element(from[i]) : Element(0);
}

// Where token `first` of one head lies.
template <int Size>
inline const device half* place(const device half* pages, const device int* table, int first) {
  return pages + (ulong(table[first / page]) * page + first % page) * Size;
}

template <int Size, int Queries>
struct Softmax {
  CODEC_CONSTANT int slots = (Size + 31) / 32;
  float largest[Queries];
  float total[Queries];
  float sum[Queries][slots];
  float weight[Queries];  // of this lane's token

  void clear() {
    for (int q = 0; q < Queries; q++) {
      largest[q] = -INFINITY;
      total[q] = 0;
      for (int s = 0; s < slots; s++) sum[q][s] = 0;
    }
  }

  // token: this lane's. Query q of `present` is row (start + q) / groups.
  template <typename Tile, typename View>
  void score(Tile keys, const device float* queries, thread const View& view, int start, int present, int groups,
             int heads, int token, int lane) {
    for (int q = 0; q < Queries; q++)
      if (q < present) {
        const int row = (start + q) / groups;
        const device float* query = queries + ulong(row * heads + (start + q) % groups) * Size;
        const bool seen = view.sees(row, token);
        const float value = seen ? view.score(keys.dot(query, lane)) : -INFINITY;
        const float now = metal::max(largest[q], metal::simd_max(value));
        const float kept = largest[q] == -INFINITY ? 0.0f : metal::precise::exp(largest[q] - now);
        weight[q] = seen ? metal::precise::exp(value - now) : 0.0f;
        total[q] = metal::fma(total[q], kept, metal::simd_sum(weight[q]));
        for (int s = 0; s < slots; s++) sum[q][s] *= kept;
        largest[q] = now;
      }
  }

  template <typename Tile>
  void mix(Tile values, int present, int lane) {
    for (int t = 0; t < tile; t++) {
      float value[slots];
      for (int s = 0; s < slots; s++)
        value[s] = s * 32 + lane < Size ? values.value(t, s * 32 + lane) * values.scale(t, s) : 0.0f;
      for (int q = 0; q < Queries; q++)
        if (q < present) {
          const float shared = metal::simd_shuffle(weight[q], ushort(t));
          for (int s = 0; s < slots; s++) sum[q][s] = metal::fma(shared, value[s], sum[q][s]);
        }
    }
  }
};

}  // namespace attention
