// quantize_fp8: codes [rows, k] e4m3 and scales [rows, ceil(k / 128)] f32 of x [rows, k] T, rows x_stride apart: the
// largest magnitude of each group of 128 numbers of a row becomes 448. A group of zeros has scale 1.
// Grid: (rows, ceil(k / 1024)); 256 threads, a warp for each group. Any k. Error: half a unit of the code's last place.
//
// silu_mul_quant: the codes and scales of silu(gate [rows, k]) * up [rows, k], both T with rows `stride` apart. Grid as
// above; the bits are those of silu_mul with a result of T, then quantize_fp8.
//
// Both: Codes.stride > 0: scales are [ceil(k / 128), stride] instead, one group after the other. Rows are those of
// each_row: codes and scales of a place are those of the row routes[place] / per_row of x, or of the place's row of
// gate and up.
#include "quant.cuh"

struct QuantizeArgs {
  const void *x;
  Codes to;
  const uint32_t *routes, *used;
  int k, x_stride, per_row;
};

struct SiluMulQuantArgs {
  const void *gate, *up;
  Codes to;
  const uint32_t *routes, *used;
  int k, stride;
};

namespace quant {

// The first column of this thread's four; from k on there is none.
DEVICE int first_column() { return (blockIdx.y * 8 + threadIdx.x / 32) * FP8_GROUP + threadIdx.x % 32 * OF_LANE; }

template <class T>
DEVICE void quantize_fp8(const QuantizeArgs &a) {
  int column = first_column();
  each_row(a.routes, a.used, [&](size_t row) {
    size_t from = a.routes ? a.routes[row] / a.per_row : row;
    float x[OF_LANE];
    read_row(x, static_cast<const T *>(a.x) + from * a.x_stride, column, a.k);
    store_codes(x, a.to, row, column, a.k);
  });
}

template <class T>
DEVICE void silu_mul_quant(const SiluMulQuantArgs &a) {
  int column = first_column();
  each_row(a.routes, a.used, [&](size_t row) {
    float gate[OF_LANE], up[OF_LANE];
    read_row(gate, static_cast<const T *>(a.gate) + row * a.stride, column, a.k);
    read_row(up, static_cast<const T *>(a.up) + row * a.stride, column, a.k);
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) gate[i] = to_float(from_float<T>(silu(gate[i]) * up[i]));
    store_codes(gate, a.to, row, column, a.k);
  });
}

}  // namespace quant

ENTRY(quantize_fp8_f32, (256), QuantizeArgs) { quant::quantize_fp8<float>(a); }
ENTRY(quantize_fp8_bf16, (256), QuantizeArgs) { quant::quantize_fp8<bf16>(a); }
ENTRY(silu_mul_quant_f32, (256), SiluMulQuantArgs) { quant::silu_mul_quant<float>(a); }
ENTRY(silu_mul_quant_bf16, (256), SiluMulQuantArgs) { quant::silu_mul_quant<bf16>(a); }
