// The packed bytes of a step along some rows of a matrix, copied to threadgroup memory so that each is read from the
// device once, by neighbouring threads that read neighbouring bytes.
#pragma once
#include "chunk.h"

template <typename Codec, int Weights = 256>
struct Stage {
  CODEC_CONSTANT int weights = Weights > Codec::weights ? Weights : Codec::weights;  // of a row
  CODEC_CONSTANT int bytes = weights / Codec::weights * Codec::bytes;
  CODEC_CONSTANT int halves = bytes / 2;

  // Of `rows` rows, `columns` long, what there is from weight `start` on. A row starts and a step ends between halves.
  static void load(threadgroup ushort* to, const device uint8_t* w, int rows, int columns, int start, int index,
                   int threads) {
    const int row_bytes = columns / Codec::weights * Codec::bytes;
    const int present = metal::min(columns - start, int(weights)) / Codec::weights * Codec::bytes / 2;
    const device uint8_t* from = w + start / Codec::weights * Codec::bytes;
    for (int n = 0; n < rows; n++) {
      const device ushort* source = (const device ushort*)(from + ulong(n) * row_bytes);
      for (int i = index; i < present; i += threads) to[n * halves + i] = source[i];
    }
  }
};
