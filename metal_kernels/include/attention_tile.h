// Attention of 8 query rows of one head over tiles of tokens, by a simdgroup with simdgroup matrices.
//
// A simdgroup keeps the scores of a tile in threadgroup memory of its own: four lanes share a row. What the sums have to
// be multiplied by when a larger score comes stands on the diagonal of a matrix, so that no map of lanes to elements is
// relied on.
#pragma once
#include <metal_simdgroup_matrix>

#include "attention.h"

namespace attention {

using Fragment = metal::simdgroup_matrix<float, 8, 8>;

template <int Tokens>
struct Scratch {
  CODEC_CONSTANT int stride = Tokens + 4;
  CODEC_CONSTANT int diagonal = 8 * stride;
  CODEC_CONSTANT int size = diagonal + 64;
};

template <int Size, int Tokens>
struct RowBlock {
  CODEC_CONSTANT int fragments = Size / 8;
  using Memory = Scratch<Tokens>;
  Fragment sum[fragments];
  float largest;  // of this lane's row
  float total;

  // scratch: this simdgroup's own.
  void clear(threadgroup float* scratch, int lane) {
    for (int f = 0; f < fragments; f++) sum[f] = Fragment(0.0f);
    largest = -INFINITY;
    total = 0;
    for (int i = lane; i < 64; i += 32) scratch[Memory::diagonal + i] = 0;
  }

  // queries: 8 rows `query_stride` apart, the first of them row `row`; keys: a tile, the first of them token `first`.
  template <typename View>
  void score(threadgroup float* scratch, const device float* queries, ulong query_stride, const threadgroup float* keys,
             thread const View& view, int row, int first, int lane) {
    Fragment products[Tokens / 8];
    for (int t = 0; t < Tokens / 8; t++) products[t] = Fragment(0.0f);
    for (int f = 0; f < fragments; f++) {
      Fragment query;
      metal::simdgroup_load(query, queries + f * 8, query_stride);
      for (int t = 0; t < Tokens / 8; t++) {
        Fragment key;
        metal::simdgroup_load(key, keys + t * 8 * (Size + 4) + f * 8, Size + 4, 0, true);
        metal::simdgroup_multiply_accumulate(products[t], query, key, products[t]);
      }
    }
    for (int t = 0; t < Tokens / 8; t++) metal::simdgroup_store(products[t], scratch + t * 8, Memory::stride);
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    weigh(scratch + lane / 4 * Memory::stride, view, row + lane / 4, first, lane);
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  }

  // Scores of this lane's row to weights: every fourth token is this lane's.
  template <typename View>
  void weigh(threadgroup float* scores, thread const View& view, int row, int first, int lane) {
    float most = largest;
    for (int t = lane % 4; t < Tokens; t += 4) {
      const float value = view.sees(row, first + t) ? view.score(scores[t]) : -INFINITY;
      scores[t] = value;
      most = metal::max(most, value);
    }
    most = metal::max(most, metal::simd_shuffle_xor(most, ushort(1)));
    most = metal::max(most, metal::simd_shuffle_xor(most, ushort(2)));
    float added = 0;
    for (int t = lane % 4; t < Tokens; t += 4) {
      const float weight = scores[t] == -INFINITY ? 0.0f : metal::precise::exp(scores[t] - most);
      scores[t] = weight;
      added += weight;
    }
    added += metal::simd_shuffle_xor(added, ushort(1));
    added += metal::simd_shuffle_xor(added, ushort(2));
    const float kept = largest == -INFINITY ? 0.0f : metal::precise::exp(largest - most);
    total = metal::fma(total, kept, added);
    largest = most;
    scale_by(scores - lane / 4 * Memory::stride, kept, lane);
  }

  void scale_by(threadgroup float* scratch, float factor, int lane) {
    if (lane % 4 == 0) scratch[Memory::diagonal + lane / 4 * 9] = factor;
  }

  void mix(const threadgroup float* scratch, const threadgroup float* values) {
    Fragment weights[Tokens / 8];
    Fragment kept;
    metal::simdgroup_load(kept, scratch + Memory::diagonal, 8);
    for (int t = 0; t < Tokens / 8; t++) metal::simdgroup_load(weights[t], scratch + t * 8, Memory::stride);
    for (int f = 0; f < fragments; f++) {
      Fragment mixed;
      metal::simdgroup_multiply_accumulate(mixed, kept, sum[f], Fragment(0.0f));
      for (int t = 0; t < Tokens / 8; t++) {
        Fragment value;
        metal::simdgroup_load(value, values + t * 8 * (Size + 4) + f * 8, Size + 4);
        metal::simdgroup_multiply_accumulate(mixed, weights[t], value, mixed);
      }
      sum[f] = mixed;
    }
  }

  // The sums, not yet divided by their totals, to 8 rows.
  void store_part(device float* to, ulong stride) {
    for (int f = 0; f < fragments; f++) metal::simdgroup_store(sum[f], to + f * 8, stride);
  }

  // The sums over their totals, to 8 rows. A sink takes part in the total; without one it is -infinity.
  void store(threadgroup float* scratch, device float* to, ulong stride, float sink, int lane) {
    const float most = metal::max(largest, sink);
    const float share = largest == -INFINITY ? 0.0f : metal::precise::exp(largest - most);
    const float whole = metal::fma(total, share, sink == -INFINITY ? 0.0f : metal::precise::exp(sink - most));
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    scale_by(scratch, whole > 0 ? share / whole : 0.0f, lane);
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    Fragment factor;
    metal::simdgroup_load(factor, scratch + Memory::diagonal, 8);
    for (int f = 0; f < fragments; f++) {
      Fragment scaled;
      metal::simdgroup_multiply_accumulate(scaled, factor, sum[f], Fragment(0.0f));
      metal::simdgroup_store(scaled, to + f * 8, stride);
    }
  }
};

}  // namespace attention
