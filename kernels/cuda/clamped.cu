// The gate of experts with biases and limits, as in gpt-oss.
//
// clamped_mul: out [rows, n] T = g * sigmoid(alpha * g) * (u + 1), where g = min(gate + bias, limit) and u = up + bias,
// from -limit to limit. gate, up [rows, n] T with rows `stride` apart; row r is of route routes[r] (null: r), and that
// of expert ids[route]. The biases are [experts, n] f32. Rows are those of each_row; those whose expert is none of them
// are not written.
//
// add_expert_bias: parts [rows, n] T += bias [experts, n] f32 of the expert ids[route], if it is one of them. Rows and
// their routes as above.
//
// Grid: (rows, ceil(n / 256)); 256 threads. Error: expf and rounding to T.
#pragma once
#include "common.cuh"

struct ClampedMulArgs {
  const void *gate, *up;
  void *out;
  const uint32_t *routes, *used, *ids;
  const float *gate_bias, *up_bias;
  int n, stride, experts;
  float alpha, limit;
};

struct ExpertBiasArgs {
  void *parts;
  const uint32_t *routes, *used, *ids;
  const float *bias;
  int n, experts;
};

template <class T>
DEVICE void clamped_mul(const ClampedMulArgs &a) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  each_row(a.routes, a.used, [&](size_t row) {
    uint32_t expert = a.ids[a.routes ? a.routes[row] : row];
    if (expert >= uint32_t(a.experts)) return;
    size_t at = row * a.stride + i, of_bias = size_t(expert) * a.n + i;
    float gate = to_float(static_cast<const T *>(a.gate)[at]) + a.gate_bias[of_bias];
    float up = to_float(static_cast<const T *>(a.up)[at]) + a.up_bias[of_bias];
    gate = fminf(gate, a.limit), up = fminf(fmaxf(up, -a.limit), a.limit);
    static_cast<T *>(a.out)[row * a.n + i] = from_float<T>(gate / (1 + expf(-a.alpha * gate)) * (up + 1));
  });
}

template <class T>
DEVICE void add_expert_bias(const ExpertBiasArgs &a) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  each_row(a.routes, a.used, [&](size_t row) {
    uint32_t expert = a.ids[a.routes ? a.routes[row] : row];
    if (expert >= uint32_t(a.experts)) return;
    T *part = static_cast<T *>(a.parts) + row * a.n + i;
    *part = from_float<T>(to_float(*part) + a.bias[size_t(expert) * a.n + i]);
  });
}

ENTRY(clamped_mul_f32, (256), ClampedMulArgs) { clamped_mul<float>(a); }
ENTRY(clamped_mul_bf16, (256), ClampedMulArgs) { clamped_mul<bf16>(a); }
ENTRY(add_expert_bias_f32, (256), ExpertBiasArgs) { add_expert_bias<float>(a); }
ENTRY(add_expert_bias_bf16, (256), ExpertBiasArgs) { add_expert_bias<bf16>(a); }
