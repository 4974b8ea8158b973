// Attention over sealed pages, for one instruction set. Compiled once for each, with -DISA=<namespace> and its flags.
//
// Queries are rotated as keys were and made whole numbers of two bytes, the weights of values likewise, so that both
// products are sums of bytes; each key's and value's scale goes on a score or a weight, never on an element.
#include "attend.h"
#include "seal.h"
#include "tile.h"

namespace edgeinfer::ISA {

constexpr int LOW = 255;             // high * LOW + low, both within ±127
constexpr float WHOLE = 127.0f * LOW;  // the largest such number, but for 127

template <int Bits>
struct Code {
  static constexpr int bits = Bits;
  static constexpr bool has_book = false, is_signed = Bits == 8;
};

// What an operand of dot4 is above its code: levels are code + 1/2.
template <int bits> constexpr float ZERO = (bits == 8 ? SIGNED_BIAS : 1 << (bits - 1)) - 0.5f;

template <int bits>
INLINE I dot(I sum, I w, I x) { return bits == 8 ? dot4_signed(sum, w, x) : dot4(sum, w, x); }

INLINE I four(const int8_t* from) {
  int32_t bytes;
  __builtin_memcpy(&bytes, from, 4);
  return all(bytes);
}

INLINE F both(I high, I low) { return to_float(high) * float(LOW) + to_float(low); }

// Whole numbers of two bytes for x / most * WHOLE. Returns their sum. `most` is the largest |x|, above 0 and finite.
INLINE float split(const float* x, int count, float most, int8_t* high, int8_t* low) {
  const F inverse = all(WHOLE / most), magic = all(12582912.0f);
  I total_of = {};
  for (int i = 0; i < count; i += W) {
    const F whole = load<F>(x + i) * inverse;
    const I number = as_int(whole + magic) - as_int(magic);
    const I top = as_int(to_float(number) * (1.0f / LOW) + magic) - as_int(magic);
    store(high + i, __builtin_convertvector(top, Bytes));
    store(low + i, __builtin_convertvector(number - top * LOW, Bytes));
    total_of += number;
  }
  return (float)total(total_of);
}

struct Range {
  float most;    // the largest |x|
  float poison;  // 0, and a NaN where some x is none or an infinity

  bool is_usable() const { return most >= 1e-30f && most < 3e38f; }
};

INLINE Range range_of(const float* x, int count) {
  F most = {}, poison = {};
  for (int i = 0; i < count; i += W) {
    const F size = (F)((I)load<F>(x + i) & 0x7fffffff);
    most = size > most ? size : most;
    poison += size * 0.0f;
  }
  Range range = {0, 0};
  for (int i = 0; i < W; i++) {
    range.most = most[i] > range.most ? most[i] : range.most;
    range.poison += poison[i];
  }
  return range;
}

static void prepare(const AttendCall& call, const SealedTile& tile, SealedQueries* out) {
  const int dim = call.in.head_dim, group = call.in.heads / call.in.kv_heads;
  const SealedView& sequence = *tile.sequence;
  const int groups = PageFormat{8, 8, dim}.groups(), padded = (dim + BLOCK - 1) / BLOCK * BLOCK;
  for (int q = 0; q < tile.count; q++) {
    const int query = tile.first_query + q, row = sequence.first_row + query / group;
    rotate_head(call.in, row, tile.kv_head * group + query % group, call.in.q_norm, call.scale, out->plain[q]);
    alignas(64) float turned[MAX_HEAD_DIM];
    for (int d = 0; d < dim; d++) turned[d] = out->plain[q][d];
    for (int d = dim; d < padded; d++) turned[d] = out->high[q][d] = out->low[q][d] = 0;
    rotate_row(turned, dim);
    const Range range = range_of(turned, dim);
    if (!range.is_usable()) {
      for (int d = 0; d < dim; d++) out->high[q][d] = out->low[q][d] = 0;
      for (int g = 0; g < groups; g++) out->sum[q][g] = 0;
      out->scale[q] = range.poison;
      continue;
    }
    split(turned, padded, range.most, out->high[q], out->low[q]);
    for (int g = 0; g < groups; g++) {
      int sum = 0;
      for (int d = g * dim / groups; d < (g + 1) * dim / groups; d++) sum += LOW * out->high[q][d] + out->low[q][d];
      out->sum[q][g] = (float)sum;
    }
    out->scale[q] = range.most / WHOLE + range.poison;
  }
}

// scores[q][0 … PAGE) of a sealed page of one kv head.
template <int N, int bits>
static void score_page(const PageFormat& format, const SealedQueries& queries, const uint8_t* page, float scores[][CHUNK]) {
  const int dim = format.head_dim, groups = format.groups(), span = dim / groups;
  const uint16_t* scales = (const uint16_t*)(page + format.key_scales_at());
  for (int first = 0; first < PAGE; first += STRIP)
    for (int part = 0; part < PARTS; part++) {
      const uint8_t* tile = page + (int64_t)(first / STRIP) * (format.padded_dim() / BLOCK) * format.key_tile();
      const int at = first + part * W;
      F totals[N] = {};
      for (int g = 0; g < groups; g++) {
        I high[N] = {}, low[N] = {};
        for (int d = g * span; d < (g + 1) * span; d += BLOCK, tile += format.key_tile()) {
          __builtin_prefetch(tile + 4 * format.key_tile());
          I w[8];
          read_codes<Code<bits>>(tile, part, nullptr, w);
          UNROLL for (int c = 0; c < 8; c++)
            UNROLL for (int q = 0; q < N; q++) {
              high[q] = dot<bits>(high[q], w[c], four(queries.high[q] + d + 4 * c));
              low[q] = dot<bits>(low[q], w[c], four(queries.low[q] + d + 4 * c));
            }
        }
        const F scale = load_half(scales + g * PAGE + at);
        UNROLL for (int q = 0; q < N; q++)
          totals[q] += scale * (both(high[q], low[q]) - ZERO<bits> * queries.sum[q][g]);
      }
      UNROLL for (int q = 0; q < N; q++) store(scores[q] + at, totals[q] * all(queries.scale[q]));
    }
}

struct SplitWeights {  // of one query over the sealed positions of a chunk
  alignas(64) int8_t high[CHUNK], low[CHUNK];
  float scale, sum;
};

// weights[0 … count) times the values' scales, as whole numbers.
INLINE void split_weights(const float* weights, const uint8_t* const* pages, int count, int64_t scales_at, int group,
                          SplitWeights* out) {
  alignas(64) float scaled[CHUNK];
  for (int i = 0; i < count; i += W) {
    const uint16_t* scales = (const uint16_t*)(pages[i / PAGE] + scales_at) + group * PAGE + i % PAGE;
    store(scaled + i, load<F>(weights + i) * load_half(scales));
  }
  const Range range = range_of(scaled, count);
  if (!range.is_usable()) {
    for (int i = 0; i < count; i++) out->high[i] = out->low[i] = 0;
    out->scale = range.poison;
    out->sum = 0;
    return;
  }
  out->sum = split(scaled, count, range.most, out->high, out->low);
  out->scale = range.most / WHOLE + range.poison;
}

// mixed[q][d] of the dimensions of one group, from `count` positions of up to two sealed pages.
template <int N, int bits>
static void mix_pages(const PageFormat& format, const SplitWeights* weights, const uint8_t* const* pages, int count,
                      int first_dim, int last_dim, float* const* mixed) {
  constexpr int groups = PAGE / BLOCK;
  for (int d = first_dim; d < last_dim; d += STRIP)
    for (int part = 0; part < PARTS; part++) {
      I high[N] = {}, low[N] = {};
      for (int at = 0; at < count; at += BLOCK) {
        const uint8_t* tile = pages[at / PAGE] + format.key_codes() +
                              (int64_t)(d / STRIP * groups + at % PAGE / BLOCK) * format.value_tile();
        __builtin_prefetch(tile + 4 * format.value_tile());
        I w[8];
        read_codes<Code<bits>>(tile, part, nullptr, w);
        UNROLL for (int c = 0; c < 8; c++)
          UNROLL for (int q = 0; q < N; q++) {
            high[q] = dot<bits>(high[q], w[c], four(weights[q].high + at + 4 * c));
            low[q] = dot<bits>(low[q], w[c], four(weights[q].low + at + 4 * c));
          }
      }
      UNROLL for (int q = 0; q < N; q++)
        store(mixed[q] + d + part * W,
              all(weights[q].scale) * (both(high[q], low[q]) - ZERO<bits> * weights[q].sum));
    }
}

template <int N>
static void score_sealed(const PageFormat& format, const SealedQueries& queries, const uint8_t* page, float scores[][CHUNK]) {
  switch (format.key_bits) {
    case 3: return score_page<N, 3>(format, queries, page, scores);
    case 4: return score_page<N, 4>(format, queries, page, scores);
    case 5: return score_page<N, 5>(format, queries, page, scores);
    case 6: return score_page<N, 6>(format, queries, page, scores);
    default: return score_page<N, 8>(format, queries, page, scores);
  }
}

template <int N>
static void mix_sealed(const PageFormat& format, const float weights[][CHUNK], int offset, const uint8_t* const* pages,
                       int count, float* const* mixed) {
  const int groups = format.groups(), span = format.head_dim / groups;
  SplitWeights split_of[N];
  for (int g = 0; g < groups; g++) {
    for (int q = 0; q < N; q++)
      split_weights(weights[q] + offset, pages, count, format.value_scales_at(), g, split_of + q);
    const int from = g * span, to = from + span;
    switch (format.value_bits) {
      case 3: mix_pages<N, 3>(format, split_of, pages, count, from, to, mixed); break;
      case 4: mix_pages<N, 4>(format, split_of, pages, count, from, to, mixed); break;
      default: mix_pages<N, 8>(format, split_of, pages, count, from, to, mixed);
    }
  }
}

struct ChunkView {  // what one chunk of positions holds, up to the last that a tile sees
  int from, to;
  int half_from, half_to;                   // positions in float16, which follow each other
  int sealed = 0, sealed_from = 0;          // pages in codes, and where the first starts within the chunk
  const uint8_t* pages[CHUNK / PAGE] = {};  // those
};

static ChunkView view_of(const PageFormat& format, const SealedTile& tile, int from, int to) {
  const SealedView& sequence = *tile.sequence;
  const int end = to > from + CHUNK ? from + CHUNK : to;
  ChunkView view{from, end, end, from};
  for (int at = from; at < view.to; at += PAGE) {
    if (at >= SINKS && at < tile.frontier) {
      if (!view.sealed) view.sealed_from = at - from;
      view.pages[view.sealed++] =
          sequence.blocks[(at - SINKS) / PAGE]->memory.get() + sequence.place + tile.kv_head * format.bytes();
    } else {
      if (at < view.half_from) view.half_from = at;
      view.half_to = at + PAGE < view.to ? at + PAGE : view.to;
    }
  }
  return view;
}

// The values of the chunk's positions weighted: those in float16 to `mixed`, those in codes to `rotated`.
template <int N>
INLINE void mix_chunk(const PageFormat& format, const ChunkView& view, const CacheView& buffer, int kv_head,
                      const float weights[][CHUNK], Partial* partials, float* const* rotated) {
  const int dim = format.head_dim;
  if (view.half_from < view.half_to) {
    const uint16_t* values = buffer.values + (int64_t)kv_head * buffer.capacity * dim;
    int d = 0;
    for (; d + ATTEND_VECTORS * W <= dim; d += ATTEND_VECTORS * W)
      mix<N, ATTEND_VECTORS>(weights, values, dim, view.from, view.half_from, view.half_to, partials, d);
    for (; d < dim; d += W) mix<N, 1>(weights, values, dim, view.from, view.half_from, view.half_to, partials, d);
  } else {
    for (int q = 0; q < N; q++)
      for (int d = 0; d < dim; d++) partials[q].mixed[d] = 0;
  }
  if (view.sealed) {
    mix_sealed<N>(format, weights, view.sealed_from, view.pages, view.sealed * PAGE, rotated);
  } else {
    for (int q = 0; q < N; q++)
      for (int d = 0; d < dim; d++) rotated[q][d] = 0;
  }
}

template <int N>
static void chunk_of(const AttendCall& call, const PageFormat& format, const SealedTile& tile,
                     const SealedQueries& queries, int chunk, float* memory) {
  const int dim = format.head_dim, group = call.in.heads / call.in.kv_heads;
  const SealedView& sequence = *tile.sequence;
  Tile6 plain;
  plain.count = N;
  for (int q = 0; q < N; q++) {
    plain.from[q] = 0;
    plain.to[q] = sequence.start + (tile.first_query + q) / group + 1;
    for (int d = 0; d < dim; d++) plain.queries[q][d] = queries.plain[q][d];
  }
  const ChunkView view = view_of(format, tile, chunk * CHUNK, plain.to[N - 1]);
  alignas(64) float weights[N][CHUNK];
  for (int i = 0; i < view.sealed; i++)
    score_sealed<N>(format, queries, view.pages[i], (float(*)[CHUNK])(weights[0] + view.sealed_from + i * PAGE));
  CacheView buffer = sequence.buffer;
  if (view.half_from < view.half_to) {
    const int64_t moved = view.half_from < SINKS ? 0 : (int64_t)(sequence.base - SINKS) * dim;
    buffer.keys -= moved;
    buffer.values -= moved;
    // A page of codes behind it keeps its scores: the loop there ends with the page.
    score<N>(plain, buffer, tile.kv_head, dim, view.from, view.half_from, view.half_to, weights);
  }
  Partial partials[N];
  float* rotated[N];
  for (int q = 0; q < N; q++) {
    float* at = memory + q * sealed_partial(dim);
    partials[q].mixed = at + 2;
    rotated[q] = at + 2 + dim;
    weigh(weights[q], view.from, view.from, view.to, plain.from[q], plain.to[q], call.softcap, partials + q);
    at[0] = partials[q].most;
    at[1] = partials[q].total;
  }
  mix_chunk<N>(format, view, buffer, tile.kv_head, weights, partials, rotated);
}

static void chunk(const AttendCall& call, const PageFormat& format, const SealedTile& tile, const SealedQueries& queries,
                  int number, float* memory) {
  switch (tile.count) {
    case 1: return chunk_of<1>(call, format, tile, queries, number, memory);
    case 2: return chunk_of<2>(call, format, tile, queries, number, memory);
    case 3: return chunk_of<3>(call, format, tile, queries, number, memory);
    case 4: return chunk_of<4>(call, format, tile, queries, number, memory);
    case 5: return chunk_of<5>(call, format, tile, queries, number, memory);
    default: return chunk_of<QUERY_TILE>(call, format, tile, queries, number, memory);
  }
}

static void merge_sealed(const AttendCall& call, const SealedTile& tile, float* merged, const float* next) {
  const int floats = sealed_partial(call.in.head_dim);
  for (int q = 0; q < tile.count; q++) {
    float* to = merged + q * floats;
    const float* from = next + q * floats;
    Partial sum{to[0], to[1], to + 2};
    merge(&sum, {from[0], from[1], const_cast<float*>(from) + 2}, 2 * call.in.head_dim);
    to[0] = sum.most;
    to[1] = sum.total;
  }
}

static void finish_sealed(const AttendCall& call, const SealedTile& tile, const float* merged) {
  const int dim = call.in.head_dim, group = call.in.heads / call.in.kv_heads;
  for (int q = 0; q < tile.count; q++) {
    const int query = tile.first_query + q;
    const int64_t row = tile.sequence->first_row + query / group, head = tile.kv_head * group + query % group;
    const float* from = merged + q * sealed_partial(dim);
    alignas(64) float rotated[MAX_HEAD_DIM];
    float* out = call.out + (row * call.in.heads + head) * dim;
    for (int d = 0; d < dim; d++) rotated[d] = from[2 + dim + d];
    rotate_row_back(rotated, dim);
    for (int d = 0; d < dim; d++) out[d] = (from[2 + d] + rotated[d]) / from[1];
  }
}

extern const SealedKernels sealed_kernels;
const SealedKernels sealed_kernels = {prepare, chunk, merge_sealed, finish_sealed, seal};

}  // namespace edgeinfer::ISA
