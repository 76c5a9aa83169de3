// add_norm: x [rows, n] f32 += factor * y [rows, n] Y (y may be null); out [rows, n] T = RMSNorm(x) * weight [n] f32.
// Grid: rows. x is the residual stream, which stays f32 for either T. Y is T, or f32 where the suffix names it first.
//
// group_norm: out [rows, groups * n] T = x [rows, groups * n] T, rows `stride` apart, with every group of `n` columns
// normed with the same weight [n] (the q/k norm). Grid: (rows, groups).
//
// layer_norm: out [rows, n] T = (x [rows, n] f32 - mean) * weight [n] / sqrt(variance + eps) + bias [n]. Grid: rows.
//
// square_sum: out [rows] f32, `columns` apart, = the sum of the squares of x [rows, n] T, rows `stride` apart.
//   Grid: rows.
// part_norm: out [rows, n] T = x [rows, n] T * weight [n] / sqrt(squares / width + eps): rows that are parts of rows of
//   `width` numbers, whose squares are `columns` apart. Grid: rows.
//
// Any n. Error: that of f32 sums of n squares, and of rounding to T.
#pragma once
#include "common.cuh"

struct AddNormArgs {
  float *x;
  const void *y;
  const float *weight;
  void *out;
  int n;
  float factor, eps;
};

struct GroupNormArgs {
  const void *x;
  const float *weight;
  void *out;
  int n, stride;
  float eps;
};

struct LayerNormArgs {
  const float *x, *weight, *bias;
  void *out;
  int n;
  float eps;
};

struct SquareSumArgs {
  const void *x;
  float *out;
  int n, stride, columns;
};

struct PartNormArgs {
  const void *x;
  const float *squares, *weight;
  void *out;
  int n, stride, columns, width;
  float eps;
};

// Numbers of a row that a thread keeps: rows of 8192 with 256 threads.
constexpr int HELD = 32;

// y(i) is number i of y, which is read unless a.y is null.
template <class T, class Read>
DEVICE void add_norm_of(const AddNormArgs &a, Read y) {
  SHARED(float, parts, 32);
  size_t row = size_t(blockIdx.x) * a.n;
  float *x = a.x + row;
  T *out = static_cast<T *>(a.out) + row;
  float squares = 0;
  if (a.n <= HELD * int(blockDim.x)) {
    // All loads before the first sum, and the row stays in registers: else each waits for the one before.
    float sums[HELD], added[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      int i = k * blockDim.x + threadIdx.x;
      sums[k] = i < a.n ? x[i] : 0;
      added[k] = a.y && i < a.n ? y(row + i) : 0;
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      int i = k * blockDim.x + threadIdx.x;
      if (i >= a.n) continue;
      if (a.y) {
        sums[k] += a.factor * added[k];
        x[i] = sums[k];
      }
      squares += sums[k] * sums[k];
    }
    float factor = rsqrtf(block_sum(squares, parts) / a.n + a.eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      int i = k * blockDim.x + threadIdx.x;
      if (i < a.n) out[i] = from_float<T>(a.weight[i] * (sums[k] * factor));
    }
    return;
  }
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) {
    float sum = x[i];
    if (a.y) {
      sum += a.factor * y(row + i);
      x[i] = sum;
    }
    squares += sum * sum;
  }
  float factor = rsqrtf(block_sum(squares, parts) / a.n + a.eps);
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) out[i] = from_float<T>(a.weight[i] * (x[i] * factor));
}

template <class Y, class T>
DEVICE void add_norm(const AddNormArgs &a) {
  add_norm_of<T>(a, [&](size_t i) { return to_float(static_cast<const Y *>(a.y)[i]); });
}

template <class T>
DEVICE void group_norm(const GroupNormArgs &a) {
  SHARED(float, parts, 32);
  const T *x = static_cast<const T *>(a.x) + size_t(blockIdx.x) * a.stride + size_t(blockIdx.y) * a.n;
  T *out = static_cast<T *>(a.out) + (size_t(blockIdx.x) * gridDim.y + blockIdx.y) * a.n;
  float squares = 0;
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) squares += to_float(x[i]) * to_float(x[i]);
  float factor = rsqrtf(block_sum(squares, parts) / a.n + a.eps);
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) out[i] = from_float<T>(a.weight[i] * (to_float(x[i]) * factor));
}

template <class T>
DEVICE void layer_norm(const LayerNormArgs &a) {
  SHARED(float, parts, 32);
  SHARED(float, square_parts, 32);
  const float *x = a.x + size_t(blockIdx.x) * a.n;
  T *out = static_cast<T *>(a.out) + size_t(blockIdx.x) * a.n;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) sum += x[i];
  float mean = block_sum(sum, parts) / a.n;
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
  float factor = rsqrtf(block_sum(squares, square_parts) / a.n + a.eps);
  for (int i = threadIdx.x; i < a.n; i += blockDim.x)
    out[i] = from_float<T>(a.weight[i] * ((x[i] - mean) * factor) + a.bias[i]);
}

template <class T>
DEVICE void square_sum(const SquareSumArgs &a) {
  SHARED(float, parts, 32);
  const T *x = static_cast<const T *>(a.x) + size_t(blockIdx.x) * a.stride;
  float squares = 0;
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) squares += to_float(x[i]) * to_float(x[i]);
  squares = block_sum(squares, parts);
  if (threadIdx.x == 0) a.out[size_t(blockIdx.x) * a.columns] = squares;
}

template <class T>
DEVICE void part_norm(const PartNormArgs &a) {
  const T *x = static_cast<const T *>(a.x) + size_t(blockIdx.x) * a.stride;
  T *out = static_cast<T *>(a.out) + size_t(blockIdx.x) * a.n;
  float factor = rsqrtf(a.squares[size_t(blockIdx.x) * a.columns] / a.width + a.eps);
  for (int i = threadIdx.x; i < a.n; i += blockDim.x) out[i] = from_float<T>(a.weight[i] * (to_float(x[i]) * factor));
}

extern "C" __global__ void __launch_bounds__(256) layer_norm_f32(const LayerNormArgs a) { layer_norm<float>(a); }
extern "C" __global__ void __launch_bounds__(256) layer_norm_bf16(const LayerNormArgs a) { layer_norm<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) square_sum_f32(const SquareSumArgs a) { square_sum<float>(a); }
extern "C" __global__ void __launch_bounds__(256) square_sum_bf16(const SquareSumArgs a) { square_sum<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) part_norm_f32(const PartNormArgs a) { part_norm<float>(a); }
extern "C" __global__ void __launch_bounds__(256) part_norm_bf16(const PartNormArgs a) { part_norm<bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) add_norm_f32(const AddNormArgs a) { add_norm<float, float>(a); }
extern "C" __global__ void __launch_bounds__(256) add_norm_bf16(const AddNormArgs a) { add_norm<bf16, bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) add_norm_f32_bf16(const AddNormArgs a) { add_norm<float, bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) group_norm_f32(const GroupNormArgs a) { group_norm<float>(a); }
extern "C" __global__ void __launch_bounds__(256) group_norm_bf16(const GroupNormArgs a) { group_norm<bf16>(a); }
