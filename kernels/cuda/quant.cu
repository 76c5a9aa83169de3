// quantize_fp8: codes [rows, k] e4m3 and scales [rows, ceil(k / 128)] f32 of x [rows, k] T, rows x_stride apart: the
// largest magnitude of each group of 128 numbers of a row becomes 448. A group of zeros has scale 1.
// Grid: (rows, ceil(k / 128)); 128 threads. Any k. Error: half a unit of the code's last place.
//
// silu_mul_quant: the codes and scales of silu(gate [rows, k]) * up [rows, k], both T with rows `stride` apart. Grid as
// above; the bits are those of silu_mul with a result of T, then quantize_fp8.
//
// Both: scale_stride > 0: scales are [ceil(k / 128), scale_stride] instead, one group after the other. routes [rows]
// (may be null): codes and scales of row r are those of the row routes[r] / per_row of x, or of row r of gate and up;
// where routes[r] is NONE nothing is written.
#include "quant.cuh"

struct QuantizeArgs {
  const void *x;
  uint8_t *codes;
  float *scales;
  const uint32_t *routes;
  int k, x_stride, per_row, scale_stride;
};

struct SiluMulQuantArgs {
  const void *gate, *up;
  uint8_t *codes;
  float *scales;
  const uint32_t *routes;
  int k, stride, scale_stride;
};

namespace quant {

// Number `column` of row blockIdx.x is x; columns from k on are not stored, and their x is 0.
DEVICE void store(float x, int column, uint8_t *codes, float *scales, int k, int scale_stride) {
  SHARED(float, parts, 4);
  size_t row = blockIdx.x;
  float largest = fabsf(x);
  for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
  float scale = largest > 0 ? largest / E4M3_MAX : 1.0f;
  if (column < k) codes[row * k + column] = to_e4m3(x / scale);
  if (threadIdx.x) return;
  scales[scale_stride ? size_t(blockIdx.y) * scale_stride + row : row * gridDim.y + blockIdx.y] = scale;
}

template <class T>
DEVICE void quantize_fp8(const QuantizeArgs &a) {
  int column = blockIdx.y * FP8_GROUP + threadIdx.x;
  size_t row = blockIdx.x;
  if (a.routes) {
    uint32_t route = a.routes[row];
    if (route == NONE) return;
    row = route / a.per_row;
  }
  const T *x = static_cast<const T *>(a.x) + row * a.x_stride;
  store(column < a.k ? to_float(x[column]) : 0.0f, column, a.codes, a.scales, a.k, a.scale_stride);
}

template <class T>
DEVICE void silu_mul_quant(const SiluMulQuantArgs &a) {
  int column = blockIdx.y * FP8_GROUP + threadIdx.x;
  if (a.routes && a.routes[blockIdx.x] == NONE) return;
  size_t at = size_t(blockIdx.x) * a.stride + column;
  float x = 0;
  if (column < a.k) {
    float gate = to_float(static_cast<const T *>(a.gate)[at]), up = to_float(static_cast<const T *>(a.up)[at]);
    x = to_float(from_float<T>(silu(gate) * up));
  }
  store(x, column, a.codes, a.scales, a.k, a.scale_stride);
}

}  // namespace quant

extern "C" __global__ void __launch_bounds__(128) quantize_fp8_f32(const QuantizeArgs a) {
  quant::quantize_fp8<float>(a);
}
extern "C" __global__ void __launch_bounds__(128) quantize_fp8_bf16(const QuantizeArgs a) {
  quant::quantize_fp8<bf16>(a);
}
extern "C" __global__ void __launch_bounds__(128) silu_mul_quant_f32(const SiluMulQuantArgs a) {
  quant::silu_mul_quant<float>(a);
}
extern "C" __global__ void __launch_bounds__(128) silu_mul_quant_bf16(const SiluMulQuantArgs a) {
  quant::silu_mul_quant<bf16>(a);
}
