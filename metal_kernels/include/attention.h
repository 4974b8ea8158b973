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

  float score(float product) const {
    const float scaled = product * scale;
    return softcap > 0 ? softcap * metal::precise::tanh(scaled / softcap) : scaled;
  }
};

// Tokens first .. first + 32 of one head to `to`, rows `Size + 2` apart so that lanes hit different banks; zero behind
// the last token.
template <int Size>
inline void load(threadgroup half* to, const device half* pages, const device int* table, int first, int length,
                 int index, int threads) {
  const device half* from = pages + (ulong(table[first / page]) * page + first % page) * Size;
  const int present = metal::min(length - first, int(tile)) * Size;
  for (int i = index; i < tile * Size; i += threads) to[i / Size * (Size + 2) + i % Size] = i < present ? from[i] : half(0);
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

  // keys: a tile; token: this lane's. Query q of `present` is row (start + q) / groups.
  void score(const threadgroup half* keys, const device float* queries, thread const View& view, int start, int present,
             int groups, int heads, int token, int lane) {
    for (int q = 0; q < Queries; q++)
      if (q < present) {
        const int row = (start + q) / groups;
        const device float* query = queries + ulong(row * heads + (start + q) % groups) * Size;
        float product = 0;
        for (int d = 0; d < Size; d++) product = metal::fma(query[d], float(keys[lane * (Size + 2) + d]), product);
        const bool seen = view.sees(row, token);
        const float value = seen ? view.score(product) : -INFINITY;
        const float now = metal::max(largest[q], metal::simd_max(value));
        const float kept = largest[q] == -INFINITY ? 0.0f : metal::precise::exp(largest[q] - now);
        weight[q] = seen ? metal::precise::exp(value - now) : 0.0f;
        total[q] = metal::fma(total[q], kept, metal::simd_sum(weight[q]));
        for (int s = 0; s < slots; s++) sum[q][s] *= kept;
        largest[q] = now;
      }
  }

  void mix(const threadgroup half* values, int present, int lane) {
    for (int t = 0; t < tile; t++)
      for (int q = 0; q < Queries; q++)
        if (q < present) {
          const float shared = metal::simd_shuffle(weight[q], ushort(t));
          for (int s = 0; s < slots; s++)
            if (s * 32 + lane < Size)
              sum[q][s] = metal::fma(shared, float(values[t * (Size + 2) + s * 32 + lane]), sum[q][s]);
        }
  }
};

}  // namespace attention
