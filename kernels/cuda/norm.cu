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
// add_norm, group_norm with one group, and part_norm also store the FP8 codes of out as quantize_fp8 does, unless
// `to.codes` is null.
//
// Any n. Error: that of f32 sums of n squares, and of rounding to T.
#pragma once
#include "quant.cuh"

struct AddNormArgs {
  float *x;
  const void *y;
  const float *weight;
  void *out;
  Codes to;
  int n;
  float factor, eps;
};

struct GroupNormArgs {
  const void *x;
  const float *weight;
  void *out;
  Codes to;
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
  Codes to;
  int n, stride, columns, width;
  float eps;
};

namespace rms {

// A thread has four numbers at a time, so that a warp has a group with one scale; and keeps so many times four: rows of
// 8192 with 256 threads.
constexpr int HELD = 8, STEP = 256 * OF_LANE;

// out = x * factor * weight from column i on, and its codes. All lanes of a warp call it.
template <class T>
DEVICE void store(const float (&x)[OF_LANE], float factor, const float *weight, void *out, const Codes &to, size_t row,
                  int i, int n) {
  float of_column[OF_LANE], rounded[OF_LANE];
  read_row(of_column, weight, i, n);
  Several<T, OF_LANE> numbers;
#pragma unroll
  for (int j = 0; j < OF_LANE; j++) {
    numbers.of[j] = from_float<T>(of_column[j] * (x[j] * factor));
    rounded[j] = to_float(numbers.of[j]);
  }
  write_row(static_cast<T *>(out) + row * n, numbers, i, n);
  if (to.codes) store_codes(rounded, to, row, i, n);
}

// `store` for a whole row of x.
template <class T, class X>
DEVICE void store_row(const X *x, float factor, const float *weight, void *out, const Codes &to, size_t row, int n) {
  int first = threadIdx.x * OF_LANE;
  for (int at = 0; at < n; at += STEP) {
    float numbers[OF_LANE];
    read_row(numbers, x, at + first, n);
    store<T>(numbers, factor, weight, out, to, row, at + first, n);
  }
}

// The sum of the squares of a row.
template <class T>
DEVICE float squares(const T *x, int n, float *parts) {
  float sum = 0;
  for (int i = threadIdx.x * OF_LANE; i < n; i += STEP) {
    float numbers[OF_LANE];
    read_row(numbers, x, i, n);
#pragma unroll
    for (int j = 0; j < OF_LANE; j++) sum += numbers[j] * numbers[j];
  }
  return block_sum(sum, parts);
}

}  // namespace rms

// y(to, i, n) reads numbers of row blockIdx.x of y from column i on, as read_row, unless a.y is null.
template <class T, class Read>
DEVICE void add_norm_of(const AddNormArgs &a, Read y) {
  using namespace rms;
  SHARED(float, parts, 32);
  size_t row = blockIdx.x;
  float *x = a.x + row * a.n;
  int first = threadIdx.x * OF_LANE;
  float squares = 0;
  auto add = [&](float (&sums)[OF_LANE], const float (&added)[OF_LANE], int i) {
    Several<float, OF_LANE> all;
#pragma unroll
    for (int j = 0; j < OF_LANE; j++) {
      if (a.y) sums[j] += a.factor * added[j];
      all.of[j] = sums[j];
      squares += sums[j] * sums[j];
    }
    if (a.y) write_row(x, all, i, a.n);
  };
  if (a.n <= HELD * STEP) {
    // All loads before the first sum, and the row stays in registers: else each waits for the one before.
    float sums[HELD][OF_LANE], added[HELD][OF_LANE];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      if (k * STEP >= a.n) break;
      read_row(sums[k], x, k * STEP + first, a.n);
      if (a.y) y(added[k], k * STEP + first, a.n);
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      if (k * STEP >= a.n) break;
      add(sums[k], added[k], k * STEP + first);
    }
    float factor = rsqrtf(block_sum(squares, parts) / a.n + a.eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      if (k * STEP >= a.n) break;
      store<T>(sums[k], factor, a.weight, a.out, a.to, row, k * STEP + first, a.n);
    }
    return;
  }
  for (int i = first; i < a.n; i += STEP) {
    float sums[OF_LANE], added[OF_LANE];
    read_row(sums, x, i, a.n);
    if (a.y) y(added, i, a.n);
    add(sums, added, i);
  }
  float factor = rsqrtf(block_sum(squares, parts) / a.n + a.eps);
  store_row<T>(x, factor, a.weight, a.out, a.to, row, a.n);
}

template <class Y, class T>
DEVICE void add_norm(const AddNormArgs &a) {
  const Y *row = static_cast<const Y *>(a.y) + size_t(blockIdx.x) * a.n;
  add_norm_of<T>(a, [&](float (&to)[OF_LANE], int i, int n) { read_row(to, row, i, n); });
}

template <class T>
DEVICE void group_norm(const GroupNormArgs &a) {
  SHARED(float, parts, 32);
  const T *x = static_cast<const T *>(a.x) + size_t(blockIdx.x) * a.stride + size_t(blockIdx.y) * a.n;
  float factor = rsqrtf(rms::squares(x, a.n, parts) / a.n + a.eps);
  rms::store_row<T>(x, factor, a.weight, a.out, a.to, size_t(blockIdx.x) * gridDim.y + blockIdx.y, a.n);
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
  float sum = rms::squares(static_cast<const T *>(a.x) + size_t(blockIdx.x) * a.stride, a.n, parts);
  if (threadIdx.x == 0) a.out[size_t(blockIdx.x) * a.columns] = sum;
}

template <class T>
DEVICE void part_norm(const PartNormArgs &a) {
  const T *x = static_cast<const T *>(a.x) + size_t(blockIdx.x) * a.stride;
  float factor = rsqrtf(a.squares[size_t(blockIdx.x) * a.columns] / a.width + a.eps);
  rms::store_row<T>(x, factor, a.weight, a.out, a.to, blockIdx.x, a.n);
}

ENTRY(layer_norm_f32, (256), LayerNormArgs) { layer_norm<float>(a); }
ENTRY(layer_norm_bf16, (256), LayerNormArgs) { layer_norm<bf16>(a); }
ENTRY(square_sum_f32, (256), SquareSumArgs) { square_sum<float>(a); }
ENTRY(square_sum_bf16, (256), SquareSumArgs) { square_sum<bf16>(a); }
ENTRY(part_norm_f32, (256), PartNormArgs) { part_norm<float>(a); }
ENTRY(part_norm_bf16, (256), PartNormArgs) { part_norm<bf16>(a); }
ENTRY(add_norm_f32, (256), AddNormArgs) { add_norm<float, float>(a); }
ENTRY(add_norm_bf16, (256), AddNormArgs) { add_norm<bf16, bf16>(a); }
ENTRY(add_norm_f32_bf16, (256), AddNormArgs) { add_norm<float, bf16>(a); }
ENTRY(group_norm_f32, (256), GroupNormArgs) { group_norm<float>(a); }
ENTRY(group_norm_bf16, (256), GroupNormArgs) { group_norm<bf16>(a); }
