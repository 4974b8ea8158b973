// The two conversions that Metal has built in, for a host compiler.
#pragma once

namespace codecs {
namespace host {

inline float float_bits(unsigned int bits) { return __builtin_bit_cast(float, bits); }
inline unsigned int bits_of(float value) { return __builtin_bit_cast(unsigned int, value); }

// float16 to float32, exact: shifted into place, the exponent's bias is mended by a multiplication, which also
// normalises subnormals. Infinities and NaNs get their exponent back afterwards.
inline float half_bits(unsigned short half) {
  const unsigned int sign = (unsigned int)(half & 0x8000) << 16;
  const unsigned int rest = (unsigned int)(half & 0x7fff) << 13;
  const unsigned int mended = bits_of(float_bits(rest) * 0x1p112f);
  return float_bits(sign | ((half & 0x7c00) == 0x7c00 ? rest | 0x7f800000u : mended));
}

}  // namespace host
}  // namespace codecs
