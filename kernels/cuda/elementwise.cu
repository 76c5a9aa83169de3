// silu_mul: out [rows, n] T = silu(gate [rows, n]) * up [rows, n], both T with rows `stride` apart, as in the result of
// one product with gate and up side by side. Grid: (rows, ceil(n / 256)). Any n. Error: expf and rounding to T.
//
// add_scaled: x [n] f32 = keep * x + factor * y [n] T (y may be null). Grid: ceil(n / 256). Error: two roundings.
//
// gather: out [rows, n] T = x at index [rows], rows of x `stride` apart. Grid: (rows, ceil(n / 256)). Exact.
#include "common.cuh"

struct SiluMulArgs {
  const void *gate, *up;
  void *out;
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
  int n, stride;
};

template <class T>
DEVICE void silu_mul(const SiluMulArgs &a) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
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
  if (i >= a.n) return;
  const T *from = static_cast<const T *>(a.x) + size_t(a.index[blockIdx.x]) * a.stride;
  static_cast<T *>(a.out)[size_t(blockIdx.x) * a.n + i] = from[i];
}

extern "C" __global__ void __launch_bounds__(256) silu_mul_f32(const SiluMulArgs a) { silu_mul<float>(a); }
extern "C" __global__ void __launch_bounds__(256) silu_mul_bf16(const SiluMulArgs a) { silu_mul<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) add_scaled_f32(const AddScaledArgs a) { add_scaled<float>(a); }
extern "C" __global__ void __launch_bounds__(256) add_scaled_bf16(const AddScaledArgs a) { add_scaled<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_f32(const GatherArgs a) { gather<float>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_bf16(const GatherArgs a) { gather<bf16>(a); }
