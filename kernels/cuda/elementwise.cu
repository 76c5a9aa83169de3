// silu_mul: out [rows, n] T = silu(gate [rows, n]) * up [rows, n], both T with rows `stride` apart, as in the result of
// one product with gate and up side by side. Rows where routes [rows] (may be null) is NONE are not written.
// Grid: (rows, ceil(n / 256)). Any n. Error: expf and rounding to T.
//
// add_scaled: x [n] f32 = keep * x + factor * y [n] T (y may be null). Grid: ceil(n / 256). Error: two roundings.
//
// gather: out [rows, n] T = x at index [rows] / per_row, rows of x `stride` apart. Rows whose index is NONE are not
// written. Grid: (rows, ceil(n / 256)). Exact.
//
// scatter: row index [rows] of out, rows of n numbers T, = row r of x [rows, n]; rows whose index is NONE go nowhere.
// Grid as above. Exact.
#include "common.cuh"

struct SiluMulArgs {
  const void *gate, *up;
  void *out;
  const uint32_t *routes;
  int n, stride;
};

struct AddScaledArgs {
  float *x;
  const void *y;
  size_t n;
  float keep, factor;
};

struct GatherArgs {
  const void *x;
  const uint32_t *index;
  void *out;
  int n, stride, per_row;
};

struct ScatterArgs {
  const void *x;
  const uint32_t *index;
  void *out;
  int n;
};

template <class T>
DEVICE void silu_mul(const SiluMulArgs &a) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= a.n || (a.routes && a.routes[blockIdx.x] == NONE)) return;
  size_t at = size_t(blockIdx.x) * a.stride + i;
  float gate = to_float(static_cast<const T *>(a.gate)[at]), up = to_float(static_cast<const T *>(a.up)[at]);
  static_cast<T *>(a.out)[size_t(blockIdx.x) * a.n + i] = from_float<T>(silu(gate) * up);
}

template <class T>
DEVICE void add_scaled(const AddScaledArgs &a) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  float x = a.keep * a.x[i];
  a.x[i] = a.y ? x + a.factor * to_float(static_cast<const T *>(a.y)[i]) : x;
}

template <class T>
DEVICE void gather(const GatherArgs &a) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  uint32_t index = a.index[blockIdx.x];
  if (i >= a.n || index == NONE) return;
  const T *from = static_cast<const T *>(a.x) + size_t(index / a.per_row) * a.stride;
  static_cast<T *>(a.out)[size_t(blockIdx.x) * a.n + i] = from[i];
}

template <class T>
DEVICE void scatter(const ScatterArgs &a) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  uint32_t index = a.index[blockIdx.x];
  if (i >= a.n || index == NONE) return;
  static_cast<T *>(a.out)[size_t(index) * a.n + i] = static_cast<const T *>(a.x)[size_t(blockIdx.x) * a.n + i];
}

extern "C" __global__ void __launch_bounds__(256) silu_mul_f32(const SiluMulArgs a) { silu_mul<float>(a); }
extern "C" __global__ void __launch_bounds__(256) silu_mul_bf16(const SiluMulArgs a) { silu_mul<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) add_scaled_f32(const AddScaledArgs a) { add_scaled<float>(a); }
extern "C" __global__ void __launch_bounds__(256) add_scaled_bf16(const AddScaledArgs a) { add_scaled<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_f32(const GatherArgs a) { gather<float>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_bf16(const GatherArgs a) { gather<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) scatter_bf16(const ScatterArgs a) { scatter<bf16>(a); }
