// Heads of a row of qkv: normed, rotated, and keys and values stored in the cache.
#pragma once

#include "rows.h"

namespace edgeinfer::ISA {

// Head `head` of row `row` (keys follow the queries), normed by `norm` unless null, rotated, times `scale`.
INLINE void rotate_head(const HeadsView& in, int row, int head, const float* norm, float scale, float* out) {
  const int dim = in.head_dim, pairs = in.rope.pairs;
  const float* x = in.qkv + (int64_t)row * in.width() + (int64_t)head * dim;
  float normed[MAX_HEAD_DIM];
  if (norm) {
    norm_row(x, norm, in.eps, dim, normed);
    x = normed;
  }
  const float* table = in.rope.table + (int64_t)row * pairs * 2;
  const float* cosine = table;
  const float* sine = table + pairs;
  if (in.rope.interleaved) {
    for (int i = 0; i < pairs; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      out[2 * i] = (a * cosine[i] - b * sine[i]) * scale;
      out[2 * i + 1] = (a * sine[i] + b * cosine[i]) * scale;
    }
  } else {
    for (int i = 0; i < pairs; i++) {
      const float a = x[i], b = x[i + pairs];
      out[i] = (a * cosine[i] - b * sine[i]) * scale;
      out[i + pairs] = (a * sine[i] + b * cosine[i]) * scale;
    }
  }
  for (int d = 2 * pairs; d < dim; d++) out[d] = x[d] * scale;
}

// Rows [first, last) of one sequence into its cache.
[[maybe_unused]] static void append(const HeadsView& in, const SequenceView& sequence, int first, int last) {
  const int dim = in.head_dim, capacity = sequence.cache.capacity;
  for (int r = first; r < last; r++) {
    const int row = sequence.first_row + r, position = sequence.start + r;
    for (int head = 0; head < in.kv_heads; head++) {
      alignas(64) float key[MAX_HEAD_DIM];
      uint16_t half[MAX_HEAD_DIM];
      rotate_head(in, row, in.heads + head, in.k_norm, 1.0f, key);
      for (int d = 0; d < dim; d += W) store_half(half + d, load<F>(key + d));
      uint16_t* keys = sequence.cache.keys + ((int64_t)head * capacity + position / STRIP * STRIP) * dim;
      for (int d = 0; d < dim; d++) keys[d * STRIP + position % STRIP] = half[d];
      const float* value = in.qkv + (int64_t)row * in.width() + (int64_t)(in.heads + in.kv_heads + head) * dim;
      uint16_t* values = sequence.cache.values + ((int64_t)head * capacity + position) * dim;
      for (int d = 0; d < dim; d += W) store_half(values + d, load<F>(value + d));
    }
  }
}

}  // namespace edgeinfer::ISA
