// FP8 codes: e4m3, 4 bits of exponent and 3 of mantissa, no infinities, 0x7f and 0xff are NaN.
#pragma once
#include "common.cuh"

constexpr int FP8_GROUP = 128;  // Numbers of x, and rows and columns of a weight, that share a scale.
constexpr float E4M3_MAX = 448.0f;

// Exact.
DEVICE bf16 e4m3_to_bf16(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return {0x7fff};
  // The bits as those of a bf16 have an exponent that is 120 too small; this holds for subnormal codes too.
  bf16 small = {uint16_t((code & 0x80) << 8 | (code & 0x7f) << 4)};
  return to_bf16(to_float(small) * 1.329227995784916e36f);  // 2^120
}

// Rounds to nearest, ties to even; larger magnitudes become the largest. Every NaN becomes 0x7f.
DEVICE uint8_t to_e4m3(float x) {
  if (x != x) return 0x7f;
  uint8_t sign = x < 0 ? 0x80 : 0;
  float magnitude = fabsf(x);
  if (magnitude >= E4M3_MAX) return sign | 0x7e;
  // Below 2^-6, codes are multiples of 2^-9.
  if (magnitude < 0.015625f) return sign | uint8_t(rintf(magnitude * 512.0f));
  uint32_t bits = float_bits(magnitude);
  bits += 0x7ffff + (bits >> 20 & 1);
  return sign | uint8_t((bits >> 20) - (120 << 3));
}
