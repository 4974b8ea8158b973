// Gives the codec headers a C interface: decode_<codec>(blocks, count, weights).
#include "codecs/all.h"

template <typename Codec>
static void decode_all(const unsigned char* blocks, long count, float* weights) {
  for (long b = 0; b < count; b++)
    for (int i = 0; i < Codec::weights; i++)
      weights[b * Codec::weights + i] = codecs::decode<Codec>(blocks + b * Codec::bytes, i);
}

#define EXPORT(name, Struct)                                                              \
  extern "C" void decode_##name(const unsigned char* blocks, long count, float* weights) { \
    decode_all<codecs::Struct>(blocks, count, weights);                                   \
  }
CODECS(EXPORT)
