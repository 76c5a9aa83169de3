// quantize_fp8: codes [rows, k] e4m3 and scales [rows, ceil(k / 128)] f32 of x [rows, k] T, rows x_stride apart: the
// largest magnitude of each group of 128 numbers of a row becomes 448. A group of zeros has scale 1.
// Grid: (ceil(k / 128), rows); 128 threads. Any k. Error: half a unit of the code's last place.
#include "quant.cuh"

struct QuantizeArgs {
  const void *x;
  uint8_t *codes;
  float *scales;
  int k, x_stride;
};

template <class T>
DEVICE void quantize_fp8(const QuantizeArgs &a) {
  SHARED(float, parts, 4);
  int column = blockIdx.x * FP8_GROUP + threadIdx.x;
  size_t row = blockIdx.y;
  float x = column < a.k ? to_float(static_cast<const T *>(a.x)[row * a.x_stride + column]) : 0.0f;
  float largest = fabsf(x);
  for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
  float scale = largest > 0 ? largest / E4M3_MAX : 1.0f;
  if (column < a.k) a.codes[row * a.k + column] = to_e4m3(x / scale);
  if (threadIdx.x == 0) a.scales[row * gridDim.x + blockIdx.x] = scale;
}

extern "C" __global__ void __launch_bounds__(128) quantize_fp8_f32(const QuantizeArgs a) { quantize_fp8<float>(a); }
extern "C" __global__ void __launch_bounds__(128) quantize_fp8_bf16(const QuantizeArgs a) { quantize_fp8<bf16>(a); }
