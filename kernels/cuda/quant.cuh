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

// The same for the four codes of a word, but for NaN: numbers 0 and 2, and 1 and 3.
DEVICE void e4m3_to_bf16(uint32_t codes, uint32_t &even, uint32_t &odd) {
  even = fma_bf16x2((codes << 4 & 0x07f007f0) | (codes << 8 & 0x80008000), 0x7b807b80, 0x80008000);
  odd = fma_bf16x2((codes >> 4 & 0x07f007f0) | (codes & 0x80008000), 0x7b807b80, 0x80008000);
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

// Numbers of a group that a lane has.
constexpr int OF_LANE = FP8_GROUP / 32;

// Where codes [rows, k] and scales [rows, ceil(k / 128)] go, or with stride > 0, scales [ceil(k / 128), stride]; null:
// nowhere.
struct Codes {
  uint8_t *codes;
  float *scales;
  int stride;
};

// Codes and scale of a group of a row of k numbers, of which each lane has four, from `column` on. All lanes of a warp
// call it.
DEVICE void store_codes(const float (&x)[OF_LANE], const Codes &to, size_t row, int column, int k) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) largest = fmaxf(largest, fabsf(x[i]));
  for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
  float scale = largest > 0 ? largest / E4M3_MAX : 1.0f;
  Several<uint8_t, OF_LANE> all;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) all.of[i] = to_e4m3(x[i] / scale);
  write_row(to.codes + row * k, all, column, k);
  int group = column / FP8_GROUP, groups = ceil_div(k, FP8_GROUP);
  if (threadIdx.x % 32 || group >= groups) return;
  to.scales[to.stride ? size_t(group) * to.stride + row : row * groups + group] = scale;
}
