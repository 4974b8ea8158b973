// Every codec, and a table for whoever needs a row of each: CODECS(X) expands X(name, Struct).
#pragma once
#include "affine.h"
#include "bf16.h"
#include "f16.h"
#include "f32.h"
#include "iq1_m.h"
#include "iq1_s.h"
#include "iq2_s.h"
#include "iq2_xs.h"
#include "iq2_xxs.h"
#include "iq3_s.h"
#include "iq3_xxs.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
#include "nvfp4.h"
#include "q1_0.h"
#include "q2_0.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"
#include "tq1_0.h"
#include "tq2_0.h"

namespace codecs {
#define AFFINE_TYPES(bits)                \
  using AFFINE##bits##_32 = Affine<bits, 32>; \
  using AFFINE##bits##_64 = Affine<bits, 64>; \
  using AFFINE##bits##_128 = Affine<bits, 128>;
AFFINE_TYPES(2) AFFINE_TYPES(3) AFFINE_TYPES(4) AFFINE_TYPES(5) AFFINE_TYPES(6) AFFINE_TYPES(8)
#undef AFFINE_TYPES
}  // namespace codecs

#define AFFINE(X, bits) \
  X(affine##bits##_32, AFFINE##bits##_32) X(affine##bits##_64, AFFINE##bits##_64) X(affine##bits##_128, AFFINE##bits##_128)
#define CODECS(X) \
  X(f32, F32) X(f16, F16) X(bf16, BF16) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) \
  X(q2_k, Q2_K) X(q3_k, Q3_K) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K) \
  X(iq1_s, IQ1_S) X(iq1_m, IQ1_M) X(iq2_xxs, IQ2_XXS) X(iq2_xs, IQ2_XS) X(iq2_s, IQ2_S) X(iq3_xxs, IQ3_XXS) X(iq3_s, IQ3_S) \
  X(iq4_nl, IQ4_NL) X(iq4_xs, IQ4_XS) X(mxfp4, MXFP4) X(nvfp4, NVFP4) \
  X(tq1_0, TQ1_0) X(tq2_0, TQ2_0) X(q1_0, Q1_0) X(q2_0, Q2_0) \
  AFFINE(X, 2) AFFINE(X, 3) AFFINE(X, 4) AFFINE(X, 5) AFFINE(X, 6) AFFINE(X, 8)
