// The values that the nibbles of IQ4 and of FP4 name; E2M1 numbers are doubled (OCP Microscaling Formats 1.0).
#pragma once
#include "base.h"

namespace codecs {

CODEC_TABLE signed char iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
CODEC_TABLE signed char e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace codecs
