// What a kernel is asked to do: plain data on raw pointers. M rows of activations, N rows and K columns of weights.
#pragma once

#include "tiles.h"

namespace edgeinfer {

struct Segment {  // rows of a matrix that share a format
  Format format;
  const uint8_t* tiles;
  int64_t strip_bytes;
  int rows;
  int strips() const { return (rows + STRIP - 1) / STRIP; }
};

constexpr int MAX_SEGMENTS = 3;

struct MatrixView {
  Segment segments[MAX_SEGMENTS];
  int count;
  int columns;
  const float* bias;  // (rows,) or null
  const Segment* begin() const { return segments; }
  const Segment* end() const { return segments + count; }
};

// 32 activations of a row as bytes. Packed [group of rows][block][row], so that a pass over a strip reads them in order.
struct QuantBlock {
  int8_t codes[BLOCK];
  float scale;
  int16_t sums[2];     // of the codes of each half
  float first_half;    // scale * sums[0]
  float both_halves;   // scale * (sums[0] + sums[1])
};
static_assert(sizeof(QuantBlock) == 48);

enum class Activation : int { none = 0, silu = 1, gelu = 2 };

// out = norm(x) @ matrix.T + bias, and then one of: act(first half) * second half; + residual, after another norm or not.
struct LinearCall {
  const float* x;  // (M, K)
  int rows;
  MatrixView matrix;
  const float* norm;  // (K,) or null: RMS norm of x first
  float eps;
  Activation activation;   // other than none: segments 0 and 1 are gate and up, N is that of one
  const float* post_norm;  // (N,) or null: RMS norm of the product, before the residual
  const float* residual;   // (M, N) or null
  float* out;              // (M, N); may be residual where there is no post_norm

  QuantBlock* packed;  // scratch: (M, K / 32), null if no segment is tiled
  float* floats;       // scratch: (M, K), null if no segment is plain or x can be read as it is
  int columns_out;     // N
};

// How heads are rotated: pair i of the first 2 * pairs dimensions by the angle of table row t.
struct RopeView {
  const float* table;  // (rows, 2, pairs): cosines, then sines
  int pairs;
  bool interleaved;  // pair i is dimensions 2i and 2i+1; else i and i + pairs
};

// Keys lie [kv head][position / 16][dimension][position % 16], values [kv head][position][dimension], both float16.
struct CacheView {
  uint16_t* keys;
  uint16_t* values;
  int capacity;  // positions, a multiple of CHUNK
};

constexpr int CHUNK = 256;        // positions whose softmax is taken together; part of the result's definition
constexpr int MAX_HEAD_DIM = 512;
constexpr int QUERY_TILE = 6;     // queries that share the loads of keys and values

struct HeadsView {  // qkv: (M, (heads + 2 * kv_heads) * head_dim)
  const float* qkv;
  int heads, kv_heads, head_dim;
  const float* q_norm;  // (head_dim,) or null
  const float* k_norm;
  float eps;
  RopeView rope;
  int width() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct AttendCall {
  HeadsView in;
  float scale, softcap;  // softcap 0: none
  int window;            // positions a row sees, itself included; 0: all
  float* out;            // (M, heads * head_dim)
  const float* sinks;    // (heads,) or null: a score of each head that takes part in its softmax and has no value
};

struct SequenceView {  // rows of the call that belong to one sequence
  CacheView cache;
  int first_row, rows;
  int start;  // position of the first row
};

}  // namespace edgeinfer
