// quantize_fp8: codes [rows, k] e4m3 and scales [rows, ceil(k / 128)] f32 of x [rows, k] T, rows x_stride apart: the
// largest magnitude of each group of 128 numbers of a row becomes 448. A group of zeros has scale 1.
// Grid: (rows, ceil(k / 1024)); 256 threads, a warp for each group. Any k. Error: half a unit of the code's last place.
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

constexpr int WARPS = 8, OF_LANE = FP8_GROUP / 32;

// The first column of this thread's four; from k on there is none.
DEVICE int first_column() { return (blockIdx.y * WARPS + threadIdx.x / 32) * FP8_GROUP + threadIdx.x % 32 * OF_LANE; }

// Columns from `column` on of a row of k numbers, and zeros.
template <class T>
DEVICE void read(float (&x)[OF_LANE], const T *row, int column, int k) {
  if (column + OF_LANE <= k && takes_several<OF_LANE>(row + column, 0)) {
    auto several = *reinterpret_cast<const Several<T, OF_LANE> *>(row + column);
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) x[i] = to_float(several.of[i]);
  } else {
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) x[i] = column + i < k ? to_float(row[column + i]) : 0.0f;
  }
}

// Codes and scale of a group of row blockIdx.x, of which each lane has four numbers. All lanes of a warp call it.
DEVICE void store(const float (&x)[OF_LANE], int column, uint8_t *codes, float *scales, int k, int scale_stride) {
  size_t row = blockIdx.x;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) largest = fmaxf(largest, fabsf(x[i]));
  for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
  float scale = largest > 0 ? largest / E4M3_MAX : 1.0f;
  Several<uint8_t, OF_LANE> all;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) all.of[i] = to_e4m3(x[i] / scale);
  uint8_t *to = codes + row * k + column;
  if (column + OF_LANE <= k && takes_several<OF_LANE>(to, 0)) {
    *reinterpret_cast<Several<uint8_t, OF_LANE> *>(to) = all;
  } else {
    for (int i = 0; i < OF_LANE && column + i < k; i++) to[i] = all.of[i];
  }
  int group = column / FP8_GROUP, groups = ceil_div(k, FP8_GROUP);
  if (threadIdx.x % 32 || group >= groups) return;
  scales[scale_stride ? size_t(group) * scale_stride + row : row * groups + group] = scale;
}

template <class T>
DEVICE void quantize_fp8(const QuantizeArgs &a) {
  size_t row = blockIdx.x;
  if (a.routes) {
    uint32_t route = a.routes[row];
    if (route == NONE) return;
    row = route / a.per_row;
  }
  int column = first_column();
  float x[OF_LANE];
  read(x, static_cast<const T *>(a.x) + row * a.x_stride, column, a.k);
  store(x, column, a.codes, a.scales, a.k, a.scale_stride);
}

template <class T>
DEVICE void silu_mul_quant(const SiluMulQuantArgs &a) {
  if (a.routes && a.routes[blockIdx.x] == NONE) return;
  int column = first_column();
  size_t row = size_t(blockIdx.x) * a.stride;
  float gate[OF_LANE], up[OF_LANE];
  read(gate, static_cast<const T *>(a.gate) + row, column, a.k);
  read(up, static_cast<const T *>(a.up) + row, column, a.k);
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) gate[i] = to_float(from_float<T>(silu(gate[i]) * up[i]));
  store(gate, column, a.codes, a.scales, a.k, a.scale_stride);
}

}  // namespace quant

extern "C" __global__ void __launch_bounds__(256) quantize_fp8_f32(const QuantizeArgs a) {
  quant::quantize_fp8<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) quantize_fp8_bf16(const QuantizeArgs a) {
  quant::quantize_fp8<bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) silu_mul_quant_f32(const SiluMulQuantArgs a) {
  quant::silu_mul_quant<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) silu_mul_quant_bf16(const SiluMulQuantArgs a) {
  quant::silu_mul_quant<bf16>(a);
}
