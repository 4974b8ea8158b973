// Codecs by their number in ggml: kernels get a codec as a template argument, and MLX passes only numbers and types.
#pragma once
#include "codecs/all.h"

namespace codecs {

template <int id> struct Row;
#define CODEC_ROW(id, Struct) template <> struct Row<id> { using Codec = Struct; };
CODEC_ROW(0, F32) CODEC_ROW(1, F16) CODEC_ROW(30, BF16)
CODEC_ROW(2, Q4_0) CODEC_ROW(3, Q4_1) CODEC_ROW(6, Q5_0) CODEC_ROW(7, Q5_1) CODEC_ROW(8, Q8_0)
CODEC_ROW(10, Q2_K) CODEC_ROW(11, Q3_K) CODEC_ROW(12, Q4_K) CODEC_ROW(13, Q5_K) CODEC_ROW(14, Q6_K)
CODEC_ROW(16, IQ2_XXS) CODEC_ROW(17, IQ2_XS) CODEC_ROW(18, IQ3_XXS) CODEC_ROW(19, IQ1_S) CODEC_ROW(20, IQ4_NL)
CODEC_ROW(21, IQ3_S) CODEC_ROW(22, IQ2_S) CODEC_ROW(23, IQ4_XS) CODEC_ROW(29, IQ1_M)
CODEC_ROW(34, TQ1_0) CODEC_ROW(35, TQ2_0) CODEC_ROW(39, MXFP4) CODEC_ROW(40, NVFP4) CODEC_ROW(41, Q1_0) CODEC_ROW(42, Q2_0)
#define AFFINE_ROWS(bits) \
  CODEC_ROW(1000 + 10 * bits, AFFINE##bits##_32) CODEC_ROW(1001 + 10 * bits, AFFINE##bits##_64) \
  CODEC_ROW(1002 + 10 * bits, AFFINE##bits##_128)
AFFINE_ROWS(2) AFFINE_ROWS(3) AFFINE_ROWS(4) AFFINE_ROWS(5) AFFINE_ROWS(6) AFFINE_ROWS(8)

}  // namespace codecs
