// linear: out [rows, n] = x [rows, k] times w [n, k] transposed, plus bias [n] f32 (may be null).
//
// linear_f32       x, w and out f32
// linear_bf16      x, w and out bf16
// linear_bf16_f32  x and w bf16, out f32
//
// Any rows, n and k; rows of x and out are x_stride and out_stride apart. Copies of 16 bytes are used where x, w, k and
// x_stride allow it. Grid: (ceil(n / 64), row tiles of 64, batch or experts).
//
// Batch: product z takes x + z * x_batch, w + z * w_batch and out + z * out_batch (elements).
// Experts (`starts` not null): product z is expert z. Its routes are order[starts[z]] up to order[starts[z + 1]]; route
// r reads row r / routes_per_row of x and writes row r of out. Its weight is w + weight_slots[z] * n * k.
//
// Each number is a sum over k in steps of 16 (bf16, tensor cores) or 1 (f32), in ascending order, whatever the rows
// are: there is no split of k. Error: that of f32 sums of k products, and of rounding to the type of out.
#include "common.cuh"

struct LinearArgs {
  const void *x, *w;
  const float *bias;
  void *out;
  const uint32_t *order, *starts, *weight_slots;
  size_t x_batch, w_batch, out_batch;
  int rows, n, k, x_stride, out_stride, routes_per_row;
};

namespace linear {

constexpr int TILE_ROWS = 64, TILE_COLS = 64;

// The product that this block has a tile of.
template <class X>
struct Product {
  const X *x, *w;
  const uint32_t *order;  // Of the tile's first row, or null.
  int rows, first_col, routes_per_row, x_stride;

  DEVICE Product(const LinearArgs &a) {
    size_t z = blockIdx.z;
    int first_row = blockIdx.y * TILE_ROWS;
    first_col = blockIdx.x * TILE_COLS;
    routes_per_row = a.routes_per_row;
    x_stride = a.x_stride;
    x = static_cast<const X *>(a.x) + z * a.x_batch;
    w = static_cast<const X *>(a.w) + z * a.w_batch;
    order = nullptr;
    rows = a.rows - first_row;
    if (a.starts) {
      rows = int(a.starts[z + 1] - a.starts[z]) - first_row;
      order = a.order + a.starts[z] + first_row;
      w = static_cast<const X *>(a.w) + size_t(a.weight_slots[z]) * a.n * a.k;
    } else {
      x += size_t(first_row) * x_stride;
    }
    if (rows > TILE_ROWS) rows = TILE_ROWS;
  }

  // Row r of the tile, below `rows`.
  DEVICE const X *x_row(int r) const { return x + size_t(order ? order[r] / routes_per_row : r) * x_stride; }
  DEVICE size_t out_row(int r) const { return order ? order[r] : blockIdx.y * TILE_ROWS + r; }
};

template <class Out>
DEVICE void store(const LinearArgs &a, const Product<bf16> &p, int r, int c, float value) {
  if (r >= p.rows || c >= a.n) return;
  if (a.bias) value += a.bias[c];
  Out *out = static_cast<Out *>(a.out) + (a.starts ? 0 : blockIdx.z * a.out_batch);
  out[p.out_row(r) * a.out_stride + c] = from_float<Out>(value);
}

// ---- f32: 256 threads, each with 4 x 4 numbers ----

DEVICE void plain(const LinearArgs &a) {
  constexpr int DEPTH = 16, PADDED = TILE_ROWS + 4;
  SHARED(float, xs, DEPTH *PADDED);
  SHARED(float, ws, DEPTH *PADDED);
  Product<float> p(a);
  if (p.rows <= 0) return;
  int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
  float sums[4][4] = {};
  for (int from = 0; from < a.k; from += DEPTH) {
    for (int i = threadIdx.x; i < TILE_ROWS * DEPTH; i += 256) {
      int r = i / DEPTH, d = i % DEPTH, n = p.first_col + r;
      bool inside = from + d < a.k;
      xs[d * PADDED + r] = inside && r < p.rows ? p.x_row(r)[from + d] : 0.0f;
      ws[d * PADDED + r] = inside && n < a.n ? p.w[size_t(n) * a.k + from + d] : 0.0f;
    }
    __syncthreads();
    for (int d = 0; d < DEPTH; d++)
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i][j] += xs[d * PADDED + row + i] * ws[d * PADDED + col + j];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int c = p.first_col + col + j;
      if (row + i >= p.rows || c >= a.n) continue;
      float *out = static_cast<float *>(a.out) + (a.starts ? 0 : blockIdx.z * a.out_batch);
      out[p.out_row(row + i) * a.out_stride + c] = sums[i][j] + (a.bias ? a.bias[c] : 0.0f);
    }
}

// ---- bf16: 128 threads; each warp has a quarter of the tile, 32 x 32 ----

constexpr int DEPTH = 32;
constexpr int PITCH = DEPTH + 8;  // 80 bytes: the 8 rows of a matrix of ldmatrix are in different banks.

// Brings columns from..from + DEPTH of a tile's rows to shared memory, with zeros outside of the matrix.
template <class Row>
DEVICE void bring(bf16 *tile, int rows, int from, int k, bool aligned, Row row) {
  if (aligned) {
    for (int i = threadIdx.x; i < 64 * DEPTH / 8; i += 128) {
      int r = i / (DEPTH / 8), d = i % (DEPTH / 8) * 8;
      bool inside = r < rows && from + d < k;
      // With no valid bytes nothing is read; the address must still be one.
      copy_async_16(tile + r * PITCH + d, inside ? row(r) + from + d : row(0), inside ? 16 : 0);
    }
  } else {
    for (int i = threadIdx.x; i < 64 * DEPTH; i += 128) {
      int r = i / DEPTH, d = i % DEPTH;
      tile[r * PITCH + d] = r < rows && from + d < k ? row(r)[from + d] : bf16{0};
    }
  }
  copy_async_commit();
}

template <class Out>
DEVICE void tensor(const LinearArgs &a) {
  constexpr int TILE = 64 * PITCH;
  SHARED(Chunk16, tiles, 4 * TILE / 8);  // Two stages of x and w.
  bf16 *xs = reinterpret_cast<bf16 *>(tiles), *ws = xs + 2 * TILE;
  Product<bf16> p(a);
  if (p.rows <= 0) return;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = warp / 2 * 32, col = warp % 2 * 32;
  bool aligned = (size_t(p.x) | size_t(p.w)) % 16 == 0 && a.k % 8 == 0 && a.x_stride % 8 == 0;
  auto x_row = [&](int r) { return p.x_row(r); };
  auto w_row = [&](int r) { return p.w + size_t(p.first_col + r) * a.k; };
  auto bring_stage = [&](int step) {
    int at = step % 2 * TILE;
    bring(xs + at, p.rows, step * DEPTH, a.k, aligned, x_row);
    bring(ws + at, a.n - p.first_col, step * DEPTH, a.k, aligned, w_row);
  };
  float sums[2][4][4] = {};
  int steps = ceil_div(a.k, DEPTH);
  if (steps > 0) bring_stage(0);
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) {
      bring_stage(step + 1);
      copy_async_wait<2>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const bf16 *x = xs + step % 2 * TILE, *w = ws + step % 2 * TILE;
#pragma unroll
    for (int d = 0; d < DEPTH; d += 16) {
      uint32_t left[2][4], right[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        // x: rows 0-7, 8-15 of columns 0-7, then of 8-15. w: columns 0-7, 8-15 of rows 0-7, then of rows 8-15.
        ldmatrix_x4(left[i], x + (row + i * 16 + lane % 16) * PITCH + d + lane / 16 * 8);
        ldmatrix_x4(right[i], w + (col + i * 16 + lane / 16 * 8 + lane % 8) * PITCH + d + lane / 8 % 2 * 8);
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          uint32_t pair[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
          mma_m16n8k16(sums[i][j], left[i], pair);
        }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int r = row + i * 16 + lane / 4 + e / 2 * 8, c = col + j * 8 + lane % 4 * 2 + e % 2;
        store<Out>(a, p, r, p.first_col + c, sums[i][j][e]);
      }
}

}  // namespace linear

extern "C" __global__ void __launch_bounds__(256) linear_f32(const LinearArgs a) { linear::plain(a); }
extern "C" __global__ void __launch_bounds__(128, 4) linear_bf16(const LinearArgs a) { linear::tensor<bf16>(a); }
extern "C" __global__ void __launch_bounds__(128, 4) linear_bf16_f32(const LinearArgs a) { linear::tensor<float>(a); }
