// Every codec, and a table for whoever needs a row of each: CODECS(X) expands X(name, Struct).
#pragma once
#include "bf16.h"
#include "f16.h"
#include "f32.h"
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

#define CODECS(X)                                                                                        \
  X(f32, F32) X(f16, F16) X(bf16, BF16) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) \
  X(q2_k, Q2_K) X(q3_k, Q3_K) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K)
