// Codecs by their number in ggml: kernels get a codec as a template argument, and MLX passes only numbers and types.
#pragma once
#include "codecs/all.h"

namespace codecs {

template <int id> struct Row;
#define CODEC_ROW(id, Struct) template <> struct Row<id> { using Codec = Struct; };
CODEC_ROW(0, F32) CODEC_ROW(1, F16) CODEC_ROW(30, BF16)
CODEC_ROW(2, Q4_0) CODEC_ROW(3, Q4_1) CODEC_ROW(6, Q5_0) CODEC_ROW(7, Q5_1) CODEC_ROW(8, Q8_0)
CODEC_ROW(10, Q2_K) CODEC_ROW(11, Q3_K) CODEC_ROW(12, Q4_K) CODEC_ROW(13, Q5_K) CODEC_ROW(14, Q6_K)

}  // namespace codecs
