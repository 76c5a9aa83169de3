// scale_outputs: x [rows, n] T = x * scales[s, n] + bias [n] f32 (may be null). scales [held, n] f32: one for each
// output of each weight; row i is of weight s with starts[s] <= i < starts[s + 1], starts [held + 1]; null: all are of
// weight 0. order: i stands for row order[i]; null: for row i. Rows of no weight stay as they are.
//
// For weights whose outputs have a scale each, behind a product with their codes. Grid: (rows, ceil(n / 256)); 256
// threads. Error: rounding to T.
#pragma once
#include "common.cuh"

struct ScaleOutputsArgs {
  void *x;
  const float *scales, *bias;
  const uint32_t *starts, *order;
  int n, held;
};

template <class T>
DEVICE void scale_outputs(const ScaleOutputsArgs &a) {
  uint32_t at = blockIdx.x, low = 0, high = uint32_t(a.held);
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  if (a.starts) {
    if (at >= a.starts[a.held]) return;
    // starts[low] <= at < starts[high]
    while (high - low > 1) {
      uint32_t middle = (low + high) / 2;
      (a.starts[middle] <= at ? low : high) = middle;
    }
  }
  size_t row = a.order ? a.order[at] : at;
  T *x = static_cast<T *>(a.x) + row * a.n + i;
  *x = from_float<T>(to_float(*x) * a.scales[size_t(low) * a.n + i] + (a.bias ? a.bias[i] : 0));
}

ENTRY(scale_outputs_f32, (256), ScaleOutputsArgs) { scale_outputs<float>(a); }
ENTRY(scale_outputs_bf16, (256), ScaleOutputsArgs) { scale_outputs<bf16>(a); }
