// linear_mixed: out [rows, n] f32 = x [rows, k] bf16 times w [n, k] f32 transposed, plus bias [n] f32 (may be null):
// the scores of experts. Batches and any sizes as in linear.cu; no experts.
//
// On tensor cores: a number of w is the sum of three bf16, exactly. Those of the second and third are skipped where all
// of a warp are 0, as with weights that the checkpoint stores in bf16. k is cut into 8 parts, one for each warp, which
// are added in ascending order; so a row's bits depend on no other rows. Up to 512 rows, a block has 16 rows by 8
// columns, since few columns would make few blocks; beyond, 64 by 64. Grid: (column tiles, row tiles, batch); 256
// threads. Error: that of f32 sums of k products.
#pragma once
#include "linear.cu"

namespace linear_mixed_of {

constexpr int WARPS = 8, STEP = 16, FEW = 512;

DEVICE float upper(float x) { return to_float(bf16{uint16_t(float_bits(x) >> 16)}); }

// Two numbers as the sum of three pairs of bf16.
struct Split {
  uint32_t parts[3];
  DEVICE Split(float low, float high) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
      parts[i] = float_bits(low) >> 16 | (float_bits(high) & 0xffff0000);
      low -= upper(low), high -= upper(high);
    }
  }
};

DEVICE uint32_t pair(const bf16 *row, int column, int k, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint32_t *>(row + column);
  uint32_t low = column < k ? row[column].bits : 0, high = column + 1 < k ? row[column + 1].bits : 0;
  return low | high << 16;
}

DEVICE Split pair(const float *row, int column, int k, bool aligned) {
  if (aligned) {
    auto both = *reinterpret_cast<const Several<float, 2> *>(row + column);
    return Split(both.of[0], both.of[1]);
  }
  return Split(column < k ? row[column] : 0, column + 1 < k ? row[column + 1] : 0);
}

// A tile of 16 * M rows by 8 * N columns.
template <int M, int N>
DEVICE void tile(const LinearArgs &a) {
  constexpr int COLUMNS = 8 * N;
  SHARED(float, sums, 16 * M *COLUMNS);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int first_row = blockIdx.y * 16 * M, first_column = blockIdx.x * COLUMNS;
  const bf16 *x = static_cast<const bf16 *>(a.x) + blockIdx.z * a.x_batch;
  const float *w = static_cast<const float *>(a.w) + blockIdx.z * a.w_batch;
  bool aligned = a.k % STEP == 0 && takes_several<2>(x, a.x_stride) && takes_several<2>(w, a.k);
  int steps = ceil_div(a.k, STEP), part = ceil_div(steps, WARPS);
  int from = warp * part, to = from + part < steps ? from + part : steps;
  float d[M][N][4] = {};
#pragma unroll(M == 1 ? 4 : 1)
  for (int step = from; step < to; step++) {
    int column = step * STEP + 2 * t;
    uint32_t left[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int row = first_row + m * 16 + g + i % 2 * 8;
        left[m][i] = row < a.rows ? pair(x + size_t(row) * a.x_stride, column + i / 2 * 8, a.k, aligned) : 0;
      }
#pragma unroll
    for (int n = 0; n < N; n++) {
      int out = first_column + n * 8 + g;
      Split low(0, 0), high(0, 0);
      if (out < a.n) {
        low = pair(w + size_t(out) * a.k, column, a.k, aligned);
        high = pair(w + size_t(out) * a.k, column + 8, a.k, aligned);
      }
      bool more = warp_ballot(low.parts[1] | low.parts[2] | high.parts[1] | high.parts[2]) != 0;
#pragma unroll
      for (int i = 0; i < 3; i++) {
        if (i > 0 && !more) break;
#pragma unroll
        for (int m = 0; m < M; m++) mma_m16n8k16(d[m][n], left[m], {low.parts[i], high.parts[i]});
      }
    }
  }
  for (int w = 0; w < WARPS; w++) {
    if (w == warp)
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            float &sum = sums[(m * 16 + g + e / 2 * 8) * COLUMNS + n * 8 + t * 2 + e % 2];
            sum = w == 0 ? d[m][n][e] : sum + d[m][n][e];
          }
    __syncthreads();
  }
  float *out = static_cast<float *>(a.out) + blockIdx.z * a.out_batch;
  for (int i = threadIdx.x; i < 16 * M * COLUMNS; i += 32 * WARPS) {
    int row = first_row + i / COLUMNS, column = first_column + i % COLUMNS;
    if (row < a.rows && column < a.n) out[size_t(row) * a.out_stride + column] = sums[i] + (a.bias ? a.bias[column] : 0);
  }
}

}  // namespace linear_mixed_of

ENTRY(linear_mixed, (256), LinearArgs) {
  if (a.rows <= linear_mixed_of::FEW)
    linear_mixed_of::tile<1, 1>(a);
  else
    linear_mixed_of::tile<4, 8>(a);
}
