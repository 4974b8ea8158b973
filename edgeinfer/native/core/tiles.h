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
// The codes of a format with a codebook are places in its 16 values, which a kernel looks up as it reads them.
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
  iq2_xxs = 16, iq2_xs = 17, iq3_xxs = 18, iq1_s = 19, iq4_nl = 20, iq3_s = 21, iq2_s = 22, iq4_xs = 23, iq1_m = 29,
  tq1_0 = 34, tq2_0 = 35, mxfp4 = 39, nvfp4 = 40, q1_0 = 41, q2_0 = 42,
  affine2_32 = 1020, affine2_64, affine2_128, affine3_32 = 1030, affine3_64, affine3_128,
  affine4_32 = 1040, affine4_64, affine4_128, affine5_32 = 1050, affine5_64, affine5_128,
  affine6_32 = 1060, affine6_64, affine6_128, affine8_32 = 1080, affine8_64, affine8_128,
};

// What the codes of a format stand for, and what its scales are multiplied by.
struct Codebook {
  int8_t values[16];
  float factor;
};

// How a scale is stored: float16, or the upper half of a float32, or all of it.
enum class ScaleKind { f16, bf16, f32 };

template <int Bits, int Group, bool HasOffset, bool IsSuper, int Zero, bool HasBook = false,
          ScaleKind Kind = ScaleKind::f16>
struct Tile {
  static constexpr int bits = Bits;
  static constexpr int groups = BLOCK / Group;  // scales in a row of a tile
  static constexpr bool has_offset = HasOffset;
  static constexpr bool is_super = IsSuper;
  static constexpr int zero = Zero;  // what is added to a code so that it is stored without a sign
  static constexpr bool has_book = HasBook;
  static constexpr bool is_signed = Bits == 8 || HasBook;  // codes reach the dot product with their signs
  static constexpr ScaleKind kind = Kind;

  static constexpr int halves = IsSuper ? 1 : groups;  // scales in two bytes, of a row
  static constexpr int half_size = Kind == ScaleKind::f32 ? 4 : 2;
  static constexpr int half_bytes = STRIP * half_size * halves * (1 + HasOffset);
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
using Q2_0 = Tile<2, 32, false, false, 1>;
using IQ4_NL = Tile<4, 32, false, false, 0, true>;
using IQ4_XS = Tile<4, 32, false, true, 0, true>;
using IQ2_XXS = Tile<3, 32, false, true, 0, true>;
using IQ2_XS = Tile<3, 16, false, true, 0, true>;
using MXFP4 = Tile<4, 32, false, false, 0, true, ScaleKind::bf16>;
using NVFP4 = Tile<4, 16, false, false, 0, true>;
template <int Bits>  // of 8 bits: with 128 off the codes and as many scales on the offset
using Affine = Tile<Bits, 32, true, false, Bits == 8 ? -128 : 0, false, ScaleKind::f32>;

constexpr Codebook BOOK_OF_IQ4 = {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 1.0f};
constexpr Codebook BOOK_OF_E2M1 = {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 1.0f};
constexpr Codebook BOOK_OF_IQ1 = {{-9, -7, -1, 1, 7, 9}, 1.0f / 8};
constexpr Codebook BOOK_OF_IQ2 = {{-43, -25, -8, 8, 25, 43}, 1.0f / 8};
constexpr Codebook BOOK_OF_IQ3_XXS = {{-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62}, 1.0f / 4};
constexpr Codebook BOOK_OF_IQ3_S = {{-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15}, 1.0f};

// X(name, Codec, Tile, Codebook or null) for each format in tiles, and X(name, Codec) for each that is [column][row].
// A build that checks the core alone leaves out what the check does not call (CMakeLists.txt).
#define COMMON_FORMATS(X)                                                                                         \
  X(q4_0, Q4_0, Q4_0, nullptr) X(q4_1, Q4_1, Q4_1, nullptr) X(q5_0, Q5_0, Q5_0, nullptr)                          \
  X(q5_1, Q5_1, Q5_1, nullptr) X(q8_0, Q8_0, Q8_0, nullptr) X(q2_k, Q2_K, Q2_K, nullptr)                          \
  X(q3_k, Q3_K, Q3_K, nullptr) X(q4_k, Q4_K, Q4_K, nullptr) X(q5_k, Q5_K, Q5_K, nullptr)                          \
  X(q6_k, Q6_K, Q6_K, nullptr)
#define OTHER_FORMATS(X)                                                                                          \
  X(tq1_0, TQ1_0, Q2_0, nullptr) X(tq2_0, TQ2_0, Q2_0, nullptr) X(q1_0, Q1_0, Q2_0, nullptr)                      \
  X(q2_0, Q2_0, Q2_0, nullptr)                                                                                    \
  X(iq4_nl, IQ4_NL, IQ4_NL, &BOOK_OF_IQ4) X(iq4_xs, IQ4_XS, IQ4_XS, &BOOK_OF_IQ4)                                 \
  X(iq3_xxs, IQ3_XXS, IQ4_XS, &BOOK_OF_IQ3_XXS) X(iq3_s, IQ3_S, IQ4_XS, &BOOK_OF_IQ3_S)                           \
  X(iq2_xxs, IQ2_XXS, IQ2_XXS, &BOOK_OF_IQ2) X(iq2_xs, IQ2_XS, IQ2_XS, &BOOK_OF_IQ2)                              \
  X(iq2_s, IQ2_S, IQ2_XS, &BOOK_OF_IQ2) X(iq1_s, IQ1_S, IQ2_XXS, &BOOK_OF_IQ1) X(iq1_m, IQ1_M, IQ2_XS, &BOOK_OF_IQ1) \
  X(mxfp4, MXFP4, MXFP4, &BOOK_OF_E2M1) X(nvfp4, NVFP4, NVFP4, &BOOK_OF_E2M1)                                \
  AFFINE_FORMATS(X, 2) AFFINE_FORMATS(X, 3) AFFINE_FORMATS(X, 4) AFFINE_FORMATS(X, 5) AFFINE_FORMATS(X, 6)        \
  AFFINE_FORMATS(X, 8)
#define AFFINE_FORMATS(X, bits)                                     \
  X(affine##bits##_32, AFFINE##bits##_32, Affine<bits>, nullptr)    \
  X(affine##bits##_64, AFFINE##bits##_64, Affine<bits>, nullptr)    \
  X(affine##bits##_128, AFFINE##bits##_128, Affine<bits>, nullptr)
#ifdef COMMON_FORMATS_ALONE
#define TILED_FORMATS(X) COMMON_FORMATS(X)
#else
#define TILED_FORMATS(X) COMMON_FORMATS(X) OTHER_FORMATS(X)
#endif
#define PLAIN_FORMATS(X) X(f32, F32) X(f16, F16) X(bf16, BF16)

}  // namespace edgeinfer
