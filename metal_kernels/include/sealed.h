// Attention over sealed pages beside what is not sealed, in one launch: threadgroups take either a page of the buffer in
// float16 with queries as they are, or sealed pages with rotated ones. What a row sees of both does not depend on how
// many rows there are, nor does how it is divided: pages lie at the same positions for all.
#pragma once
#include "attention.h"
#include "pages.h"

namespace sealed {

// What a row sees of positions that are sealed, or of those that are not.
struct View {
  int position;  // of the first row
  bool codes;
  float scale;
  float softcap;  // 0: none

  bool sees(int row, int token) const {
    const int place = position + row;
    const int border = pages::frontier(place);
    return codes ? token < border : token <= place && (token < pages::sinks || token >= border);
  }

  float score(float product) const { return attention::capped(product * scale, softcap); }
};

// A tile of levels with the scales of its tokens, [group][token]; they go on scores, and on values once for all queries.
template <typename Format>
struct Tile {
  CODEC_CONSTANT int stride = Format::size + 2;
  const threadgroup half* rows;
  const threadgroup float* scales;

  float dot(const device float* query, int token) const {
    float product = 0;
    for (int g = 0; g < Format::groups; g++) {
      float sum = 0;
      for (int d = g * Format::span; d < (g + 1) * Format::span; d++)
        sum = metal::fma(query[d], float(rows[token * stride + d]), sum);
      product = metal::fma(sum, scales[g * attention::tile + token], product);
    }
    return product;
  }

  float value(int token, int channel) const { return float(rows[token * stride + channel]); }
  float scale(int token, int slot) const { return scales[slot * 32 / Format::span * attention::tile + token]; }
};

// Scales of tokens that are not sealed.
template <typename Format, int Tokens>
inline void no_scales(threadgroup float* to, int index, int threads) {
  for (int i = index; i < Format::groups * Tokens; i += threads) to[i] = 1.0f;
}

}  // namespace sealed
