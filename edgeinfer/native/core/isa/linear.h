// The three steps of a linear call: prepare rows of x, multiply one unit of the output, norm rows of the product.
#pragma once

#include "dot_rows.h"
#include "math.h"
#include "rows.h"

namespace edgeinfer::ISA {

// Rows of a group of packed activations, given how many are left.
INLINE int group_rows(int left) { return left >= 16 ? 16 : left >= 8 ? 8 : left; }

static void prepare_row(const LinearCall& call, int row, QuantBlock* packed, int packed_rows) {
  const int columns = call.matrix.columns;
  const float* x = call.x + (int64_t)row * columns;
  const float factor = call.norm ? inverse_rms(x, columns, call.eps) : 1.0f;
  if (call.floats) {
    float* floats = call.floats + (int64_t)row * columns;
    scale_row(x, call.norm, factor, columns, floats);
  }
  if (!call.packed) return;
  constexpr int span = TOGETHER * BLOCK;
  for (int i = 0; i < columns; i += span, packed += (int64_t)TOGETHER * packed_rows) {
    const int count = columns - i < span ? columns - i : span;
    alignas(64) float normed[span];
    if (call.norm) scale_row(x + i, call.norm + i, factor, count, normed);
    quantize_blocks(call.norm ? normed : x + i, count / BLOCK, packed, packed_rows);
  }
}

constexpr int ROWS_AHEAD = 2;

// Half of a row lies in another core's cache, which wrote it: further away than prefetching in hardware looks.
INLINE void fetch_row(const float* x, int columns) {
  for (int i = 0; i < columns; i += 16) __builtin_prefetch(x + i);
}

// Rows [first, last); first is a multiple of 16.
static void linear_prepare(const LinearCall& call, int first, int last) {
  const int columns = call.matrix.columns;
  while (first < last) {
    const int count = group_rows(last - first);
    for (int r = 0; r < count; r++) {
      if (first + r + ROWS_AHEAD < last) fetch_row(call.x + (int64_t)(first + r + ROWS_AHEAD) * columns, columns);
      prepare_row(call, first + r, call.packed ? call.packed + (int64_t)first * (columns / BLOCK) + r : nullptr, count);
    }
    first += count;
  }
}

template <class T>
static void strip_rows(const uint8_t* strip, int columns, const Codebook* book, const QuantBlock* x, int packed_rows,
                       int rows, float* out) {
  while (rows > 0) {
    const int now = rows < MAX_ROWS ? rows : MAX_ROWS;
    switch (now) {
      case 1: dot_rows<T, 1>(strip, columns, book, x, packed_rows, out); break;
      case 2: dot_rows<T, 2>(strip, columns, book, x, packed_rows, out); break;
      case 3: dot_rows<T, 3>(strip, columns, book, x, packed_rows, out); break;
      case 4: dot_rows<T, 4>(strip, columns, book, x, packed_rows, out); break;
      case 5: dot_rows<T, MAX_ROWS < 5 ? 1 : 5>(strip, columns, book, x, packed_rows, out); break;
      case 6: dot_rows<T, MAX_ROWS < 6 ? 1 : 6>(strip, columns, book, x, packed_rows, out); break;
      case 7: dot_rows<T, MAX_ROWS < 7 ? 1 : 7>(strip, columns, book, x, packed_rows, out); break;
      case 8: dot_rows<T, MAX_ROWS < 8 ? 1 : 8>(strip, columns, book, x, packed_rows, out); break;
      default: dot_rows<T, MAX_ROWS>(strip, columns, book, x, packed_rows, out);
    }
    x += now, out += now * STRIP, rows -= now;
  }
}

template <Plain kind>
static void strip_rows_plain(const uint8_t* strip, int columns, const float* x, int rows, float* out) {
  while (rows > 0) {
    const int now = rows < PLAIN_ROWS ? rows : PLAIN_ROWS;
    switch (now) {
      case 1: dot_rows_plain<kind, 1>(strip, columns, x, out); break;
      case 2: dot_rows_plain<kind, 2>(strip, columns, x, out); break;
      case 3: dot_rows_plain<kind, PLAIN_ROWS < 3 ? 1 : 3>(strip, columns, x, out); break;
      case 4: dot_rows_plain<kind, PLAIN_ROWS < 4 ? 1 : 4>(strip, columns, x, out); break;
      case 5: dot_rows_plain<kind, PLAIN_ROWS < 5 ? 1 : 5>(strip, columns, x, out); break;
      default: dot_rows_plain<kind, PLAIN_ROWS>(strip, columns, x, out);
    }
    x += (int64_t)now * columns, out += now * STRIP, rows -= now;
  }
}

// A strip of a segment times rows [first, first + count) -> out (count, 16).
static void strip_product(const LinearCall& call, const Segment& segment, int strip, int first, int count, float* out) {
  const int columns = call.matrix.columns;
  const uint8_t* tiles = segment.tiles + strip * segment.strip_bytes;
  const QuantBlock* packed = call.packed + (int64_t)first * (columns / BLOCK);
  const float* floats = (call.floats ? call.floats : call.x) + (int64_t)first * columns;
  switch (segment.format) {
#define TILED(name, C, T, book) \
  case Format::name: return strip_rows<T>(tiles, columns, book, packed, count, count, out);
    TILED_FORMATS(TILED)
#undef TILED
    case Format::f32: return strip_rows_plain<Plain::f32>(tiles, columns, floats, count, out);
    case Format::f16: return strip_rows_plain<Plain::f16>(tiles, columns, floats, count, out);
    case Format::bf16: return strip_rows_plain<Plain::bf16>(tiles, columns, floats, count, out);
  }
}

INLINE void gate_product(Activation activation, float* gate, const float* up, int count) {
  for (int i = 0; i < count * STRIP; i += W) {
    const F g = load<F>(gate + i);
    store(gate + i, (activation == Activation::silu ? silu(g) : gelu(g)) * load<F>(up + i));
  }
}

// 16 columns of the result, or those of them that there are, from `column` on.
INLINE void write_row(const LinearCall& call, const float* product, int row, int column, int valid) {
  const int64_t at = (int64_t)row * call.columns_out + column;
  const float* bias = call.matrix.bias ? call.matrix.bias + column : nullptr;
  const float* residual = call.residual && !call.post_norm ? call.residual + at : nullptr;
  int i = 0;
  for (; i + W <= valid; i += W) {
    F value = load<F>(product + i);
    if (bias) value += load<F>(bias + i);
    if (residual) value += load<F>(residual + i);
    store(call.out + at + i, value);
  }
  for (; i < valid; i++) call.out[at + i] = product[i] + (bias ? bias[i] : 0) + (residual ? residual[i] : 0);
}

// Unit u of the output is strip u of all segments in a row, or of gate and up at once; rows [first, last).
static void linear_unit(const LinearCall& call, int unit, int first, int last) {
  const Segment* segment = call.matrix.segments;
  int column = unit * STRIP, strip = unit;
  if (call.activation == Activation::none)
    for (column = 0; strip >= segment->strips(); segment++) {
      strip -= segment->strips();
      column += segment->rows;
    }
  if (call.activation == Activation::none) column += strip * STRIP;
  const int left = segment->rows - strip * STRIP;
  while (first < last) {
    const int count = group_rows(last - first);
    alignas(64) float product[16 * STRIP], up[16 * STRIP];
    strip_product(call, *segment, strip, first, count, product);
    if (call.activation != Activation::none) {
      strip_product(call, call.matrix.segments[1], strip, first, count, up);
      gate_product(call.activation, product, up, count);
    }
    for (int r = 0; r < count; r++)
      write_row(call, product + r * STRIP, first + r, column, left < STRIP ? left : STRIP);
    first += count;
  }
}

static void linear_post_norm(const LinearCall& call, int row) {
  const int columns = call.columns_out;
  float* out = call.out + (int64_t)row * columns;
  norm_row(out, call.post_norm, call.eps, columns, out);
  if (!call.residual) return;
  const float* residual = call.residual + (int64_t)row * columns;
  for (int i = 0; i < columns; i++) out[i] += residual[i];
}

}  // namespace edgeinfer::ISA
