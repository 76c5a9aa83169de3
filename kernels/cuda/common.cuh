// What the kernels share: numbers of either type, sums over a block, and the conventions of their arguments.
//
// Conventions. Matrices are row-major. `stride` is the distance of rows in elements. Sizes are int and offsets size_t.
// A kernel takes one struct, whose Rust twin is in kernels/src/cuda. A grid has rows along x: along y and z it has at
// most 65535 blocks, and a step of 8192 rows has more routes than that. T is float or bf16; sums are always in f32, in
// an order that depends on neither the number of rows nor the grid. A row is skipped or zeroed where its index is NONE.
#pragma once
#include "ptx.cuh"

// A kernel with an argument `a`: ENTRY(name, (threads of a block), Args) { body }. It may be launched before those
// before it have ended (LaunchPlan::overlaps), so it first waits for them. ENTRY_THAT_MEETS: one that waits for other
// streams; the next kernel's blocks must not take the place of theirs.
#define ENTRY_BEGINNING_WITH(first, name, bounds, Args)                                                   \
  static DEVICE void name##_body(const Args &a);                                                          \
  extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Args a) {              \
    first;                                                                                                \
    name##_body(a);                                                                                       \
  }                                                                                                       \
  static DEVICE void name##_body(const Args &a)
#define ENTRY(name, bounds, Args) \
  ENTRY_BEGINNING_WITH((wait_for_earlier_kernels(), allow_next_kernel()), name, bounds, Args)
#define ENTRY_THAT_MEETS(name, bounds, Args) ENTRY_BEGINNING_WITH(wait_for_earlier_kernels(), name, bounds, Args)

constexpr uint32_t NONE = 0xffffffff;

DEVICE float to_float(float x) { return x; }

template <class T>
DEVICE T from_float(float x);
template <>
DEVICE float from_float<float>(float x) {
  return x;
}
template <>
DEVICE bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

// Several numbers that are read and written at once.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Several {
  T of[N];
};

// Whether rows that begin `stride` numbers apart can be read so.
template <int N, class T>
DEVICE bool takes_several(const T *start, size_t stride) {
  return uintptr_t(start) % alignof(Several<T, N>) == 0 && stride % N == 0;
}

// Numbers i to i + N - 1 of a row of n, at once if they can be; zeros from n on.
template <int N, class T>
DEVICE void read_row(float (&to)[N], const T *row, int i, int n) {
  if (i + N <= n && takes_several<N>(row + i, 0)) {
    auto several = *reinterpret_cast<const Several<T, N> *>(row + i);
#pragma unroll
    for (int j = 0; j < N; j++) to[j] = to_float(several.of[j]);
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) to[j] = i + j < n ? to_float(row[i + j]) : 0.0f;
  }
}

template <int N, class T>
DEVICE void write_row(T *row, const Several<T, N> &from, int i, int n) {
  if (i + N <= n && takes_several<N>(row + i, 0)) {
    *reinterpret_cast<Several<T, N> *>(row + i) = from;
  } else {
    for (int j = 0; j < N && i + j < n; j++) row[i + j] = from.of[j];
  }
}

// Calls `each` for the rows of this block: row blockIdx.x; or with `used`, rows that are places of routes (moe_place),
// every gridDim.x-th of the first *used. Rows whose route (routes may be null) is NONE are left out.
template <class Each>
DEVICE void each_row(const uint32_t *routes, const uint32_t *used, Each each) {
  uint32_t end = used ? *used : blockIdx.x + 1;
  for (uint32_t row = blockIdx.x; row < end; row += gridDim.x)
    if (!routes || routes[row] != NONE) each(size_t(row));
}

DEVICE uint32_t float_bits(float x) {
  union {
    float value;
    uint32_t bits;
  } both = {x};
  return both.bits;
}

DEVICE float bits_float(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } both = {bits};
  return both.value;
}

// Each with its own rounding: the compiler may not fuse them, so that bits are those of the CPU.
DEVICE float multiply(float a, float b) {
#ifdef REIN_HOST
  return a * b;
#else
  return __fmul_rn(a, b);
#endif
}
DEVICE float add(float a, float b) {
#ifdef REIN_HOST
  return a + b;
#else
  return __fadd_rn(a, b);
#endif
}

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

// The form with tanh, of which (1 + tanh(u)) / 2 is sigmoid(2 u).
DEVICE float gelu(float x) { return x / (1.0f + expf(-x * (1.5957691f + 0.071354814f * x * x))); }

DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <class T>
DEVICE T warp_sum(T x) {
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// The sum over the block's threads, the same for all; `parts` is a shared array of one float for each warp.
DEVICE float block_sum(float x, float *parts) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; i++) sum += parts[i];
  return sum;
}

// The place of this thread among those of a block of 256 for which `mine` is true, from `at` on; `at` then is the place
// after all of them. `warps` is a shared array of 8, which is free again after the next __syncthreads.
DEVICE uint32_t place_in_block(bool mine, uint32_t *warps, uint32_t &at) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t lanes = warp_ballot(mine);
  if (lane == 0) warps[warp] = count_bits(lanes);
  __syncthreads();
  uint32_t place = at + count_bits(lanes & ((1u << lane) - 1));
  for (int w = 0; w < 8; w++) {
    if (w < warp) place += warps[w];
    at += warps[w];
  }
  return place;
}
