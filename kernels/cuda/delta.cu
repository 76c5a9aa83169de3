// A gated delta net, in two kernels. A cell of `states` has for each key head the inputs that its convolution still
// sees [taps - 1, channels], then for each value head its state [key_dim, value_dim], all f32. Each block has numbers
// of a cell of its own, so a sequence may leave its state in the cell that it reads.
//
// delta_mix: mixed [rows, key_heads * channels] f32 = silu of the convolution of qkvz [rows, key_heads * inputs] T with
// conv [key_heads, taps, channels] f32, and what it sees later to the cells. Grid: (sequences, key_heads).
//
// delta_net: out [rows, value_heads * value_dim] T: per row S = g S + k (beta (v - g S^T k))^T and S^T q, normed with
// norm [value_dim], times silu(z); g = exp(-exp(log_decay) softplus(a + step_bias)), beta = sigmoid(b); q and k have
// unit length, q also 1 / sqrt(key_dim). ba [rows, 2 * value_heads] T: of each key head b of its value heads, then a.
// Rows of no sequence are zeroed. Grid: (sequences, value_heads). Error: that of f32 sums in another order.
#pragma once
#include "common.cuh"

struct DeltaArgs {
  const void *qkvz, *ba;
  const float *conv, *log_decay, *step_bias, *norm;
  float *mixed, *states;
  void *out;
  // [3, sequences + 1]: the first row of each sequence, the cell that it begins from (NONE: zero) and its first save;
  // then the saves: after how many rows of the sequence, to which cell.
  const uint32_t *cells;
  size_t numbers;  // Of a cell.
  int rows, sequences, key_heads, group, key_dim, value_dim, taps, qkvz_stride, ba_stride;
  float eps;
};

namespace delta {

constexpr float UNIT_EPS = 1e-6f;

// A sequence of the step.
struct Sequence {
  uint32_t begin, end, from, save, last_save;
  const uint32_t *saves;

  DEVICE Sequence(const DeltaArgs &a, int s) {
    const uint32_t *cells = a.cells;
    int n = a.sequences + 1;
    begin = cells[s], end = cells[s + 1], from = cells[n + s];
    save = cells[2 * n + s], last_save = cells[2 * n + s + 1], saves = cells + 3 * n;
  }
  DEVICE uint32_t cell(uint32_t i) const { return saves[2 * i + 1]; }
  DEVICE bool due(uint32_t i, uint32_t row) const { return i < last_save && saves[2 * i] == row + 1 - begin; }
};

DEVICE int channels(const DeltaArgs &a) { return 2 * a.key_dim + a.group * a.value_dim; }

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

}  // namespace delta

template <class T>
DEVICE void delta_mix(const DeltaArgs &a) {
  using namespace delta;
  Sequence sequence(a, blockIdx.x);
  int head = blockIdx.y, width = channels(a), before = a.taps - 1;
  const T *qkvz = static_cast<const T *>(a.qkvz) + size_t(head) * (width + a.group * a.value_dim);
  const float *conv = a.conv + size_t(head) * a.taps * width;
  auto seen = [&](uint32_t cell) { return a.states + cell * a.numbers + size_t(head) * before * width; };
  const float *old = sequence.from == NONE ? nullptr : seen(sequence.from);
  // A thread has its channels in every row and cell.
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    // The input `back` rows before a row.
    auto input = [&](uint32_t row, int back) {
      int own = int(row - sequence.begin) - back;
      if (own >= 0) return to_float(qkvz[size_t(sequence.begin + own) * a.qkvz_stride + c]);
      return old ? old[size_t(before + own) * width + c] : 0.0f;
    };
    for (uint32_t row = sequence.begin; row < sequence.end; row++) {
      float sum = 0;
      for (int back = 0; back < a.taps; back++) sum += conv[size_t(before - back) * width + c] * input(row, back);
      a.mixed[(size_t(row) * a.key_heads + head) * width + c] = sum * sigmoid(sum);
    }
    // The last cell at last: it may be the one that is read. From the oldest input on, each is read before it is
    // overwritten.
    for (uint32_t i = sequence.save; i < sequence.last_save; i++) {
      float *to = seen(sequence.cell(i));
      uint32_t row = sequence.begin + sequence.saves[2 * i] - 1;
      for (int back = before - 1; back >= 0; back--) to[size_t(before - 1 - back) * width + c] = input(row, back);
    }
  }
}

template <class T>
DEVICE void delta_net(const DeltaArgs &a) {
  using namespace delta;
  SHARED(float, parts, 32);
  Sequence sequence(a, blockIdx.x);
  int head = blockIdx.y, key_head = head / a.group, member = head % a.group, width = channels(a), n = a.value_dim;
  int value_heads = gridDim.y;
  T *out = static_cast<T *>(a.out) + size_t(head) * n;
  if (sequence.begin == sequence.end) {
    // One of those that fill up a decode step, each with a row.
    for (int c = threadIdx.x; c < n && a.rows == a.sequences; c += blockDim.x)
      out[size_t(blockIdx.x) * value_heads * n + c] = from_float<T>(0);
    return;
  }
  float *query = reinterpret_cast<float *>(dynamic_shared()), *key = query + a.key_dim, *result = key + a.key_dim;
  size_t place = size_t(a.taps - 1) * a.key_heads * width + size_t(head) * a.key_dim * n;
  auto state = [&](uint32_t cell) { return a.states + cell * a.numbers + place; };
  float *to = state(sequence.cell(sequence.last_save - 1));
  const float *from = sequence.from == NONE ? nullptr : state(sequence.from);
  float rate = expf(a.log_decay[head]);
  uint32_t save = sequence.save;
  for (uint32_t row = sequence.begin; row < sequence.end; row++) {
    const float *mixed = a.mixed + (size_t(row) * a.key_heads + key_head) * width;
    const T *gates = static_cast<const T *>(a.qkvz) + size_t(row) * a.qkvz_stride +
                     size_t(key_head) * (width + a.group * n) + width + member * n;
    const T *ba = static_cast<const T *>(a.ba) + size_t(row) * a.ba_stride + size_t(key_head) * 2 * a.group + member;
    float queries = 0, keys = 0;
    for (int i = threadIdx.x; i < a.key_dim; i += blockDim.x) {
      query[i] = mixed[i], key[i] = mixed[a.key_dim + i];
      queries += query[i] * query[i], keys += key[i] * key[i];
    }
    queries = rsqrtf((block_sum(queries, parts) + UNIT_EPS) * a.key_dim);
    keys = rsqrtf(block_sum(keys, parts) + UNIT_EPS);
    float step = to_float(ba[a.group]) + a.step_bias[head], beta = sigmoid(to_float(ba[0]));
    float decay = expf(-rate * (step > 20 ? step : log1pf(expf(step))));
    float squares = 0;
    for (int c = threadIdx.x; c < n; c += blockDim.x) {
      float known = 0, sum = 0;
      for (int i = 0; from && i < a.key_dim; i++) known += from[size_t(i) * n + c] * (key[i] * keys);
      float change = (mixed[2 * a.key_dim + member * n + c] - known * decay) * beta;
      for (int i = 0; i < a.key_dim; i++) {
        float next = (from ? from[size_t(i) * n + c] * decay : 0.0f) + key[i] * keys * change;
        to[size_t(i) * n + c] = next;
        sum += next * (query[i] * queries);
      }
      result[c] = sum;
      squares += sum * sum;
    }
    float factor = rsqrtf(block_sum(squares, parts) / n + a.eps);
    for (int c = threadIdx.x; c < n; c += blockDim.x) {
      float gate = to_float(gates[c]);
      out[size_t(row) * value_heads * n + c] = from_float<T>(a.norm[c] * (result[c] * factor) * gate * sigmoid(gate));
    }
    from = to;
    for (; sequence.due(save, row); save++) {
      float *copy = state(sequence.cell(save));
      for (int c = threadIdx.x; c < n && copy != to; c += blockDim.x)
        for (int i = 0; i < a.key_dim; i++) copy[size_t(i) * n + c] = to[size_t(i) * n + c];
    }
    // The next row overwrites what was shared.
    __syncthreads();
  }
}

ENTRY(delta_mix_f32, (128), DeltaArgs) { delta_mix<float>(a); }
ENTRY(delta_mix_bf16, (128), DeltaArgs) { delta_mix<bf16>(a); }
ENTRY(delta_net_f32, (128, 8), DeltaArgs) { delta_net<float>(a); }
ENTRY(delta_net_bf16, (128, 8), DeltaArgs) { delta_net<bf16>(a); }
