// silu_mul: out [rows, n] T = silu(gate [rows, n]) * up [rows, n], both T with rows `stride` apart, as in the result of
// one product with gate and up side by side. Rows are those of each_row.
// Grid: (rows, ceil(n / 2048)). Any n. Error: expf and rounding to T. gelu_mul: the same with gelu (tanh).
//
// gelu: out [n] T = gelu(x [n] T), by the error function or tanh. Grid: ceil(n / 256). Error: erff or expf, and
// rounding.
//
// narrow: out [n] bf16 = x [n] f32. Grid: ceil(n / 256); 256 threads. Error: rounding.
//
// sigmoid_mul: x [rows, n] T *= sigmoid of gate [rows, n] G, or of one gate for each row, rows of it `stride` apart.
// Grid: (rows, ceil(n / 256)). Error: expf and rounding to T.
//
// add_scaled: x [n] f32 = keep * x + factor * y [n] T (y may be null). Grid: ceil(n / 256). Error: two roundings.
//
// gather: out [rows, n] T = x at index [rows] / per_row, rows of x `stride` apart. Rows are those of each_row, with
// `index` as routes. Grid: (rows, ceil(n / 2048)). Exact.
//
// scatter: row index [rows] of out, rows of n numbers T, = row r of x [rows, n]. Rows and grid as above. Exact.
#include "common.cuh"

struct SiluMulArgs {
  const void *gate, *up;
  void *out;
  const uint32_t *routes, *used;
  int n, stride;
};

struct GeluArgs {
  const void *x;
  void *out;
  size_t n;
  int tanh;
};

struct NarrowArgs {
  const float *x;
  bf16 *out;
  size_t n;
};

struct SigmoidMulArgs {
  void *x;
  const void *gate;
  int n, gates, stride;  // `gates`: n or 1.
};

struct AddScaledArgs {
  float *x;
  const void *y;
  size_t n;
  float keep, factor;
};

struct GatherArgs {
  const void *x;
  const uint32_t *index, *used;
  void *out;
  int n, stride, per_row;
};

struct ScatterArgs {
  const void *x;
  const uint32_t *index, *used;
  void *out;
  int n;
};

namespace elementwise {

constexpr int OF_THREAD = 8;

// Calls `each` for this thread's columns of n, at once if `several`, else one by one: each(column, 8) or each(column,
// 1).
template <class Each>
DEVICE void columns(int n, bool several, Each each) {
  int first = (blockIdx.y * blockDim.x + threadIdx.x) * OF_THREAD;
  if (several && first + OF_THREAD <= n) return each(first, Several<char, OF_THREAD>());
  for (int i = first; i < n && i < first + OF_THREAD; i++) each(i, Several<char, 1>());
}

// N numbers, N being that of `Several<char, N>`.
template <class T, int N>
DEVICE Several<T, N> read(const T *from, Several<char, N>) {
  return *reinterpret_cast<const Several<T, N> *>(from);
}
template <class T, int N>
DEVICE void write(T *to, const Several<T, N> &numbers) {
  *reinterpret_cast<Several<T, N> *>(to) = numbers;
}

template <class T>
DEVICE void copy(T *to, const T *from, int n, bool several) {
  columns(n, several, [&](int i, auto count) { write(to + i, read(from + i, count)); });
}

}  // namespace elementwise

template <class T, bool GELU>
DEVICE void gate_mul(const SiluMulArgs &a) {
  using namespace elementwise;
  const T *gates = static_cast<const T *>(a.gate), *ups = static_cast<const T *>(a.up);
  T *out = static_cast<T *>(a.out);
  bool several = takes_several<OF_THREAD>(gates, a.stride) && takes_several<OF_THREAD>(ups, a.stride) &&
                 takes_several<OF_THREAD>(out, a.n);
  each_row(a.routes, a.used, [&](size_t row) {
    columns(a.n, several, [&](int i, auto count) {
      auto gate = read(gates + row * a.stride + i, count), up = read(ups + row * a.stride + i, count);
      constexpr int N = sizeof gate.of / sizeof(T);
#pragma unroll
      for (int j = 0; j < N; j++) {
        float x = to_float(gate.of[j]);
        gate.of[j] = from_float<T>((GELU ? gelu(x) : silu(x)) * to_float(up.of[j]));
      }
      write(out + row * a.n + i, gate);
    });
  });
}

template <class T, class G>
DEVICE void sigmoid_mul(const SigmoidMulArgs &a) {
  int c = blockIdx.y * blockDim.x + threadIdx.x;
  if (c >= a.n) return;
  T &x = static_cast<T *>(a.x)[size_t(blockIdx.x) * a.n + c];
  float gate = to_float(static_cast<const G *>(a.gate)[size_t(blockIdx.x) * a.stride + (a.gates > 1 ? c : 0)]);
  x = from_float<T>(to_float(x) / (1.0f + expf(-gate)));
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
  using namespace elementwise;
  const T *x = static_cast<const T *>(a.x);
  T *out = static_cast<T *>(a.out);
  bool several = takes_several<OF_THREAD>(x, a.stride) && takes_several<OF_THREAD>(out, a.n);
  each_row(a.index, a.used, [&](size_t row) {
    copy(out + row * a.n, x + size_t(a.index[row] / a.per_row) * a.stride, a.n, several);
  });
}

template <class T>
DEVICE void scatter(const ScatterArgs &a) {
  using namespace elementwise;
  const T *x = static_cast<const T *>(a.x);
  T *out = static_cast<T *>(a.out);
  bool several = takes_several<OF_THREAD>(x, a.n) && takes_several<OF_THREAD>(out, a.n);
  each_row(a.index, a.used, [&](size_t row) { copy(out + size_t(a.index[row]) * a.n, x + row * a.n, a.n, several); });
}

template <class T>
DEVICE void gelu_of(const GeluArgs &a) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  float x = to_float(static_cast<const T *>(a.x)[i]);
  static_cast<T *>(a.out)[i] = from_float<T>(a.tanh ? gelu(x) : 0.5f * x * (1 + erff(x * 0.70710678f)));
}

ENTRY(gelu_f32, (256), GeluArgs) { gelu_of<float>(a); }
ENTRY(gelu_bf16, (256), GeluArgs) { gelu_of<bf16>(a); }
ENTRY(narrow_bf16, (256), NarrowArgs) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.n) a.out[i] = to_bf16(a.x[i]);
}
ENTRY(silu_mul_f32, (256), SiluMulArgs) { gate_mul<float, false>(a); }
ENTRY(silu_mul_bf16, (256, 4), SiluMulArgs) { gate_mul<bf16, false>(a); }
ENTRY(gelu_mul_f32, (256), SiluMulArgs) { gate_mul<float, true>(a); }
ENTRY(gelu_mul_bf16, (256), SiluMulArgs) { gate_mul<bf16, true>(a); }
ENTRY(sigmoid_mul_f32, (256), SigmoidMulArgs) { sigmoid_mul<float, float>(a); }
ENTRY(sigmoid_mul_bf16, (256), SigmoidMulArgs) { sigmoid_mul<bf16, bf16>(a); }
ENTRY(sigmoid_mul_bf16_f32, (256), SigmoidMulArgs) { sigmoid_mul<bf16, float>(a); }
ENTRY(add_scaled_f32, (256), AddScaledArgs) { add_scaled<float>(a); }
ENTRY(add_scaled_bf16, (256), AddScaledArgs) { add_scaled<bf16>(a); }
ENTRY(gather_f32, (256), GatherArgs) { gather<float>(a); }
ENTRY(gather_bf16, (256), GatherArgs) { gather<bf16>(a); }
ENTRY(scatter_bf16, (256), ScatterArgs) { scatter<bf16>(a); }
