// How weights lie in memory for the kernels.
//
// A strip is 16 rows of a matrix, contiguous. A strip of a block format is a run of tiles of 16 rows x 32 columns:
//
//   float16 scales of the 16 rows, then their offsets          formats with one scale a block
//   bytes: sub-scales [group][row], then sub-offsets            formats with super-blocks; their float16 scales (and
//                                                               offsets) stand before each run of 8 tiles
//   planes of codes
//
// Four consecutive codes of a row are neighbours: chunk c of a tile is columns 4c … 4c+3 of all rows, 64 codes, the
// operand of one four-way dot product. A plane holds some bits of each code: in the 4-bit plane 64-byte line c has
// chunk c in its low and chunk c + 4 in its high nibbles; in the 2-bit plane line j has chunks 4j … 4j+3; in the 1-bit
// plane the only line has all eight. Bits 5, 6 and 3 are planes 4 + 1, 4 + 2 and 2 + 1.
//
// A strip of F32, F16 or BF16 is [column][row].
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgeinfer {

constexpr int STRIP = 16;   // rows
constexpr int BLOCK = 32;   // columns of a tile, and activations that share a scale

enum class Format : int {  // in the numbers of ggml
  f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8,
  q2_k = 10, q3_k = 11, q4_k = 12, q5_k = 13, q6_k = 14, bf16 = 30,
};

template <int Bits, int Group, bool HasOffset, bool IsSuper, int Zero>
struct Tile {
  static constexpr int bits = Bits;
  static constexpr int groups = BLOCK / Group;  // scales in a row of a tile
  static constexpr bool has_offset = HasOffset;
  static constexpr bool is_super = IsSuper;
  static constexpr int zero = Zero;  // what is added to a code so that it is stored without a sign

  static constexpr int half_bytes = STRIP * 2 * (1 + HasOffset);
  static constexpr int sub_bytes = IsSuper ? STRIP * groups * (1 + HasOffset) : 0;
  static constexpr int bytes = (IsSuper ? sub_bytes : half_bytes) + STRIP * BLOCK * Bits / 8;
  static constexpr int tiles = IsSuper ? 8 : 1;  // that share float16 scales
  static constexpr int columns = BLOCK * tiles;
  static constexpr int stride = (IsSuper ? half_bytes : 0) + tiles * bytes;  // of so many columns
};

using Q4_0 = Tile<4, 32, false, false, 8>;
using Q4_1 = Tile<4, 32, true, false, 0>;
using Q5_0 = Tile<5, 32, false, false, 16>;
using Q5_1 = Tile<5, 32, true, false, 0>;
using Q8_0 = Tile<8, 32, false, false, 0>;  // alone in keeping its sign: not every machine wants it gone
using Q2_K = Tile<2, 16, true, true, 0>;
using Q3_K = Tile<3, 16, false, true, 4>;
using Q4_K = Tile<4, 32, true, true, 0>;
using Q5_K = Tile<5, 32, true, true, 0>;
using Q6_K = Tile<6, 16, false, true, 32>;

// X(name, Struct) for each format in tiles, and for each that is [column][row].
#define TILED_FORMATS(X)                                                                    \
  X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0)                      \
  X(q2_k, Q2_K) X(q3_k, Q3_K) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K)
#define PLAIN_FORMATS(X) X(f32, F32) X(f16, F16) X(bf16, BF16)

}  // namespace edgeinfer
