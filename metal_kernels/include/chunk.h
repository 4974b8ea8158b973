// Eight consecutive weights, unpacked once: weight j = scale * code[j] + offset.
#pragma once
#include "by_id.h"

template <typename Codec>
struct Chunk {
  float code[8];
  float scale;
  float offset;

  // The chunk-th of a row that starts at `row`.
  template <typename Bytes>
  void unpack(Bytes row, int chunk) {
    const int first = chunk * 8;
    Bytes block = row + first / Codec::weights * Codec::bytes;
    const int i = first % Codec::weights;
    if (Codec::weights == 1) {  // a weight is its own scale
      for (int j = 0; j < 8; j++) code[j] = Codec::scale(block + j * Codec::bytes, 0);
      scale = 1;
    } else {
      for (int j = 0; j < 8; j++) code[j] = float(Codec::code(block, i + j));
      scale = Codec::scale(block, i / Codec::group);
    }
    offset = Codec::has_offset ? Codec::offset(block, i / Codec::group) : 0;
  }

  // Weight j as every decoder gives it: rounded after the product and after the sum.
  float weight(int j) const {
    const float scaled = scale * code[j];
    return Codec::has_offset ? scaled + offset : scaled;
  }
};
