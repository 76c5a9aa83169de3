// cache_fp8: stores rows x [rows, width] T, `stride` numbers apart, as entries of codes in a paged cache: row r at
// place places[r]. `sharing` numbers share a scale, the smallest power of two by which they fit in e4m3, so that codes
// times scales are exact in bf16; 0: none has a scale. Scales of a place are `scales_of_place` apart and begin at
// `first_scale`. Grid: (rows, groups, or 1); 128 threads. Rows whose position or place is NONE are left out. Error:
// half a unit of the code's last place.
#pragma once
#include "quant.cuh"

struct CacheFp8Args {
  const void *x;
  uint8_t *codes;
  float *scales;
  const uint32_t *positions, *places;
  int width, stride, sharing, scales_of_place, first_scale;
};

namespace cache {

constexpr int THREADS = 128;

// The smallest power of two by which numbers up to `largest` fit in e4m3.
DEVICE float scale_of(float largest) {
  uint32_t ratio = float_bits(largest / E4M3_MAX);
  if (ratio < 0x00800000u) return largest > 0 ? bits_float(0x00800000u) : 1.0f;
  return bits_float((ratio + 0x007fffffu) & 0xff800000u);
}

template <class T>
DEVICE void store(const CacheFp8Args &a) {
  SHARED(float, largest_of, THREADS / 32);
  int row = blockIdx.x, group = blockIdx.y;
  if (a.positions[row] == NONE || a.places[row] == NONE) return;
  size_t place = a.places[row];
  int count = a.sharing ? a.sharing : a.width, from = group * count;
  const T *x = static_cast<const T *>(a.x) + size_t(row) * a.stride + from;
  float scale = 1;
  if (a.sharing) {
    float largest = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) largest = fmaxf(largest, fabsf(to_float(x[i])));
    for (int mask = 16; mask; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
    if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = 0;
    for (int warp = 0; warp < THREADS / 32; warp++) largest = fmaxf(largest, largest_of[warp]);
    scale = scale_of(largest);
    if (threadIdx.x == 0) a.scales[place * a.scales_of_place + a.first_scale + group] = scale;
  }
  uint8_t *codes = a.codes + place * a.width + from;
  for (int i = threadIdx.x; i < count; i += THREADS) codes[i] = to_e4m3(to_float(x[i]) / scale);
}

// A number of a cache: a code without its scale, or what is stored.
DEVICE float number(uint8_t code) { return to_float(e4m3_to_bf16(code)); }
DEVICE float number(float x) { return x; }
DEVICE float number(bf16 x) { return to_float(x); }

}  // namespace cache

ENTRY(cache_fp8_f32, (128), CacheFp8Args) { cache::store<float>(a); }
ENTRY(cache_fp8_bf16, (128), CacheFp8Args) { cache::store<bf16>(a); }
