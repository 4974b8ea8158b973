// Attention of some queries over one chunk of positions, and how chunks are put together.
//
// A row's softmax is defined by chunks of 256 positions at fixed places: each from scratch, then merged in order. So it
// does not matter whether chunks run one after another or on several threads, nor which rows share a tile.
#pragma once

#include "heads.h"
#include "math.h"

namespace edgeinfer::ISA {

constexpr int VALUES_AHEAD = 32;  // positions whose values are fetched before their turn

// Of one query over some positions: the largest score, sum of exp(score - largest), and the values weighted by it.
struct Partial {
  float most, total;
  float* mixed;  // (head_dim,)
};

struct Tile6 {  // queries of one kv head; query q is row q / group, head q % group of it
  int count;
  int from[QUERY_TILE], to[QUERY_TILE];  // positions each may see: [from, to)
  alignas(64) float queries[QUERY_TILE][MAX_HEAD_DIM];
};

INLINE void load_tile(const AttendCall& call, const SequenceView& sequence, int kv_head, int first, Tile6* tile) {
  const int group = call.in.heads / call.in.kv_heads;
  const int left = sequence.rows * group - first;
  tile->count = left < QUERY_TILE ? left : QUERY_TILE;
  for (int q = 0; q < tile->count; q++) {
    const int row = (first + q) / group, head = kv_head * group + (first + q) % group;
    const int position = sequence.start + row;
    tile->to[q] = position + 1;
    tile->from[q] = call.window && position + 1 > call.window ? position + 1 - call.window : 0;
    rotate_head(call.in, sequence.first_row + row, head, call.in.q_norm, call.scale, tile->queries[q]);
  }
}

// scores[q][position - chunk] of the V vectors of positions from `at` on, a multiple of W.
template <int N, int V>
INLINE void score_vectors(const Tile6& tile, const uint16_t* keys, int dim, int chunk, int at, float scores[][CHUNK]) {
  const uint16_t* column[V];
  UNROLL for (int v = 0; v < V; v++) {
    const int position = at + v * W;
    column[v] = keys + (int64_t)(position / STRIP) * dim * STRIP + position % STRIP;
  }
  const int64_t next = (int64_t)dim * V * W;  // what the following vectors of positions lie behind these
  F sums[N][V] = {};
  for (int d = 0; d < dim; d++) {
    if (d % 2 == 0) UNROLL for (int v = 0; v < V; v += 16 / W) __builtin_prefetch(column[v] + next + d * STRIP);
    F k[V];
    UNROLL for (int v = 0; v < V; v++) k[v] = load_half(column[v] + d * STRIP);
    UNROLL for (int q = 0; q < N; q++) {
      const F x = all(tile.queries[q][d]);
      UNROLL for (int v = 0; v < V; v++) sums[q][v] = fma(x, k[v], sums[q][v]);
    }
  }
  UNROLL for (int q = 0; q < N; q++)
    UNROLL for (int v = 0; v < V; v++) store(scores[q] + at - chunk + v * W, sums[q][v]);
}

// The same of positions [from, to), from on a multiple of 16; lanes past `to` hold anything.
template <int N>
static void score(const Tile6& tile, const CacheView& cache, int kv_head, int dim, int chunk, int from, int to,
                  float scores[][CHUNK]) {
  const uint16_t* keys = cache.keys + (int64_t)kv_head * cache.capacity * dim;
  constexpr int V = ATTEND_VECTORS;
  int at = from;
  for (; at + V * W <= to; at += V * W) score_vectors<N, V>(tile, keys, dim, chunk, at, scores);
  for (; at < to; at += W) score_vectors<N, 1>(tile, keys, dim, chunk, at, scores);
}

// Scores to exp(score - largest) where the query may look and 0 elsewhere; [from, to) as above.
INLINE void weigh(float* scores, int chunk, int from, int to, int see_from, int see_to, float softcap, Partial* out) {
  typedef I Index;
  Index lane;
  for (int i = 0; i < W; i++) lane[i] = i;
  F most = all(-__builtin_inff());
  for (int at = from; at < to; at += W) {
    F s = load<F>(scores + at - chunk);
    if (softcap != 0) s = softcap * tanh(s / softcap);
    const Index position = lane + at;
    s = (position >= see_from) & (position < see_to) ? s : all(-__builtin_inff());
    store(scores + at - chunk, s);
    most = max(s, most);
  }
  float largest = most[0];
  for (int i = 1; i < W; i++) largest = most[i] > largest ? most[i] : largest;
  Lanes totals = {};
  for (int at = from; at < to; at += W) {
    const F s = load<F>(scores + at - chunk);
    const Index position = lane + at;
    const F weight = (position >= see_from) & (position < see_to) ? exp(s - largest) : F{};
    store(scores + at - chunk, weight);
    totals.part[at / W % PARTS] += weight;
  }
  out->most = largest;
  out->total = sum(totals);
}

// mixed[q][d] = sum over positions [from, to) of weights[q][position] * values[position][d], V vectors of d at once.
template <int N, int V>
static void mix(const float weights[][CHUNK], const uint16_t* values, int dim, int chunk, int from, int to,
                Partial* out, int d) {
  F sums[N][V] = {};
  for (int at = from; at < to; at++) {
    const uint16_t* row = values + (int64_t)at * dim + d;
    UNROLL for (int line = 0; line < V * W; line += 32) __builtin_prefetch(row + VALUES_AHEAD * dim + line);
    F v[V];
    UNROLL for (int i = 0; i < V; i++) v[i] = load_half(row + i * W);
    UNROLL for (int q = 0; q < N; q++) {
      const F weight = all(weights[q][at - chunk]);
      UNROLL for (int i = 0; i < V; i++) sums[q][i] = fma(weight, v[i], sums[q][i]);
    }
  }
  UNROLL for (int q = 0; q < N; q++)
    UNROLL for (int i = 0; i < V; i++) store(out[q].mixed + d + i * W, sums[q][i]);
}

template <int N>
static void attend_chunk_of(const AttendCall& call, const CacheView& cache, int kv_head, const Tile6& tile, int chunk,
                            Partial* out) {
  const int dim = call.in.head_dim;
  int from = chunk + CHUNK, to = chunk;
  for (int q = 0; q < N; q++) {
    if (tile.from[q] < from) from = tile.from[q];
    if (tile.to[q] > to) to = tile.to[q];
  }
  from = from < chunk ? chunk : from;
  to = to > chunk + CHUNK ? chunk + CHUNK : to;
  alignas(64) float weights[N][CHUNK];
  const int aligned = from / STRIP * STRIP;
  score<N>(tile, cache, kv_head, dim, chunk, aligned, to, weights);
  for (int q = 0; q < N; q++)
    weigh(weights[q], chunk, aligned, to, tile.from[q], tile.to[q], call.softcap, out + q);
  const uint16_t* values = cache.values + (int64_t)kv_head * cache.capacity * dim;
  int d = 0;
  for (; d + ATTEND_VECTORS * W <= dim; d += ATTEND_VECTORS * W)
    mix<N, ATTEND_VECTORS>(weights, values, dim, chunk, from, to, out, d);
  for (; d < dim; d += W) mix<N, 1>(weights, values, dim, chunk, from, to, out, d);
}

INLINE void attend_chunk_tile(const AttendCall& call, const CacheView& cache, int kv_head, const Tile6& tile, int chunk,
                              Partial* out) {
  switch (tile.count) {
    case 1: return attend_chunk_of<1>(call, cache, kv_head, tile, chunk, out);
    case 2: return attend_chunk_of<2>(call, cache, kv_head, tile, chunk, out);
    case 3: return attend_chunk_of<3>(call, cache, kv_head, tile, chunk, out);
    case 4: return attend_chunk_of<4>(call, cache, kv_head, tile, chunk, out);
    case 5: return attend_chunk_of<5>(call, cache, kv_head, tile, chunk, out);
    default: return attend_chunk_of<QUERY_TILE>(call, cache, kv_head, tile, chunk, out);
  }
}

// Adds a later chunk to what has been merged; one in which the query sees nothing changes nothing.
INLINE void merge(Partial* merged, const Partial& next, int dim) {
  if (next.total == 0) return;
  const float most = next.most > merged->most ? next.most : merged->most;
  const F old_factor = exp(all(merged->most - most)), factor = exp(all(next.most - most));
  const bool empty = merged->total == 0;
  const F keep = empty ? F{} : old_factor;
  merged->total = merged->total * keep[0] + next.total * factor[0];
  merged->most = most;
  for (int d = 0; d < dim; d += W)
    store(merged->mixed + d, fma(load<F>(merged->mixed + d), keep, load<F>(next.mixed + d) * factor));
}

INLINE void finish(const AttendCall& call, const SequenceView& sequence, int kv_head, int query, const Partial& merged) {
  const int group = call.in.heads / call.in.kv_heads, dim = call.in.head_dim;
  const int64_t row = sequence.first_row + query / group, head = kv_head * group + query % group;
  float* out = call.out + (row * call.in.heads + head) * dim;
  float total = merged.total, share = 1;
  if (call.sinks) {
    const float sink = call.sinks[head], most = sink > merged.most ? sink : merged.most;
    share = exp(all(merged.most - most))[0];
    total = total * share + exp(all(sink - most))[0];
  }
  for (int d = 0; d < dim; d += W) store(out + d, load<F>(merged.mixed + d) * all(share) / total);
}

}  // namespace edgeinfer::ISA
