// linear: out [rows, n] = x [rows, k] times w [n, k] transposed, plus bias [n] f32 (may be null).
//
// linear_f32       x, w and out f32
// linear_bf16      x, w and out bf16
// linear_bf16_f32  x and w bf16, out f32
// linear_fp8       x and w e4m3 codes with scales, out bf16
// linear_fp8_f32   x and w e4m3 codes with scales, out f32
// linear_int4      x bf16, w packed int4 with f32 scales, out bf16
// linear_int4_f32  x bf16, w packed int4 with f32 scales, out f32
// linear_int4_bf16_scales      the same with bf16 scales, out bf16
// linear_int4_bf16_scales_f32  the same with bf16 scales, out f32
// linear_mxfp4, linear_mxfp4_f32  the same with bf16 scales and codes of e2m1
//
// FP8: number [n, k] of w is its code times w_scales [n / 128, k / 128], number [r, k] of x its code times x_scales
// [r, k / 128], as quantize_fp8 makes them; x_batch is 0. INT4: w is [n, ceil(k / 8)] words with eight values each, the
// lowest nibble first, as value + 8; number [n, k] is its value times w_scales [n, k / group], group being a multiple
// of 32. MXFP4: the same with e2m1 codes in place of values. Codes and values are exact in bf16, so only the scales
// round. bf16 scales are widened to f32, which is exact: the bits are those of the same scales as f32. With experts,
// w_scales continue as w does.
//
// Any rows, n and k; rows of x and out are x_stride and out_stride apart. Copies of 16 bytes are used where x, w, k and
// x_stride allow it. Grid: (ceil(n / 64), row tiles of 64, batch or experts).
//
// Batch: product z takes x + z * x_batch, w + z * w_batch and out + z * out_batch (elements).
// Experts (`starts` not null): product z is expert z. Its routes are order[starts[z]] up to order[starts[z + 1]]; route
// r reads row r / routes_per_row of x and writes row r of out. Its weight is w + weight_slots[z] * n * k.
//
// Each number is a sum over k in steps of 16 (tensor cores) or 1 (w f32), in ascending order, whatever the rows
// are: there is no split of k. With scales, the sums of each group are scaled and
// added in f32. Error: that of f32 sums of k products, and of rounding to the type of out.
#pragma once
#include "quant.cuh"

struct LinearArgs {
  const void *x, *w;
  const float *bias;
  void *out;
  const uint32_t *order, *starts, *weight_slots;
  size_t x_batch, w_batch, out_batch;
  const float *x_scales;
  const void *w_scales;  // f32, or bf16 where the name says so.
  int rows, n, k, x_stride, out_stride, routes_per_row;
  int group;  // Of INT4.
};

namespace linear {

constexpr int TILE_ROWS = 64, TILE_COLS = 64;

// The product that this block has a tile of. `slot` is the place of its weight among all.
template <class X>
struct Product {
  const X *x;
  size_t slot;
  const uint32_t *order;  // Of the tile's first row, or null.
  int rows, first_col, routes_per_row, x_stride;

  DEVICE Product(const LinearArgs &a) {
    size_t z = blockIdx.z;
    int first_row = blockIdx.y * TILE_ROWS;
    first_col = blockIdx.x * TILE_COLS;
    routes_per_row = a.routes_per_row;
    x_stride = a.x_stride;
    x = static_cast<const X *>(a.x) + z * a.x_batch;
    slot = z;
    order = nullptr;
    rows = a.rows - first_row;
    if (a.starts) {
      rows = int(a.starts[z + 1] - a.starts[z]) - first_row;
      order = a.order + a.starts[z] + first_row;
      slot = a.weight_slots[z];
    }
    if (rows > TILE_ROWS) rows = TILE_ROWS;
  }

  // Row r of the tile, below `rows`: its index in x, and where it is.
  DEVICE size_t x_index(int r) const { return order ? order[r] / routes_per_row : blockIdx.y * TILE_ROWS + r; }
  DEVICE const X *x_row(int r) const { return x + x_index(r) * x_stride; }
  DEVICE size_t out_row(int r) const { return order ? order[r] : blockIdx.y * TILE_ROWS + r; }
};

// Where the weights of a block's product begin.
template <class W, class X>
DEVICE const W *weights(const LinearArgs &a, const Product<X> &p) {
  return static_cast<const W *>(a.w) + p.slot * (a.starts ? size_t(a.n) * a.k : a.w_batch);
}

template <class Out, class X>
DEVICE void store(const LinearArgs &a, const Product<X> &p, int r, int c, float value) {
  if (r >= p.rows || c >= a.n) return;
  if (a.bias) value += a.bias[c];
  Out *out = static_cast<Out *>(a.out) + (a.starts ? 0 : blockIdx.z * a.out_batch);
  out[p.out_row(r) * a.out_stride + c] = from_float<Out>(value);
}

// ---- w f32: 256 threads, each with 4 x 4 numbers ----

DEVICE void plain(const LinearArgs &a) {
  constexpr int DEPTH = 16, PADDED = TILE_ROWS + 4;
  SHARED(float, xs, DEPTH *PADDED);
  SHARED(float, ws, DEPTH *PADDED);
  Product<float> p(a);
  if (p.rows <= 0) return;
  const float *w = weights<float>(a, p);
  int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
  float sums[4][4] = {};
  for (int from = 0; from < a.k; from += DEPTH) {
    for (int i = threadIdx.x; i < TILE_ROWS * DEPTH; i += 256) {
      int r = i / DEPTH, d = i % DEPTH, n = p.first_col + r;
      bool inside = from + d < a.k;
      xs[d * PADDED + r] = inside && r < p.rows ? p.x_row(r)[from + d] : 0.0f;
      ws[d * PADDED + r] = inside && n < a.n ? w[size_t(n) * a.k + from + d] : 0.0f;
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
    for (int j = 0; j < 4; j++) store<float>(a, p, row + i, p.first_col + col + j, sums[i][j]);
}

// ---- Tensor cores: 128 threads; each warp has a quarter of the tile, 32 x 32 ----

constexpr int DEPTH = 32;
constexpr int PITCH = DEPTH + 8;  // 80 bytes: the 8 rows of a matrix of ldmatrix are in different banks.

// Brings columns from..from + DEPTH of a tile's rows to shared memory, with zeros outside of the matrix.
// `element(r, k)` is a number of row r.
template <class Element>
DEVICE void bring(bf16 *tile, int rows, int from, int k, Element element) {
  for (int i = threadIdx.x; i < 64 * DEPTH; i += 128) {
    int r = i / DEPTH, d = i % DEPTH;
    tile[r * PITCH + d] = r < rows && from + d < k ? element(r, from + d) : bf16{0};
  }
}

// The same by copies of 16 bytes; `row(r)` is where row r begins.
template <class Row>
DEVICE void bring_chunks(bf16 *tile, int rows, int from, int k, Row row) {
  for (int i = threadIdx.x; i < 64 * DEPTH / 8; i += 128) {
    int r = i / (DEPTH / 8), d = i % (DEPTH / 8) * 8;
    bool inside = r < rows && from + d < k;
    // With no valid bytes nothing is read; the address must still be one.
    copy_async_16(tile + r * PITCH + d, inside ? row(r) + from + d : row(0), inside ? 16 : 0);
  }
}

// The same by eight numbers of a row at once, from `eight(r, k)`.
template <class Eight>
DEVICE void bring_eights(bf16 *tile, int rows, int from, int k, Eight eight) {
  for (int i = threadIdx.x; i < 64 * DEPTH / 8; i += 128) {
    int r = i / (DEPTH / 8), d = i % (DEPTH / 8) * 8;
    bool inside = r < rows && from + d < k;
    auto *to = reinterpret_cast<Several<bf16, 8> *>(tile + r * PITCH + d);
    *to = inside ? eight(r, from + d) : Several<bf16, 8>{};
  }
}

// The forms of x and w. `bring` fills a stage; `scale` is the factor of a group's sum for row r of the tile and
// column c.
struct Plain {
  typedef bf16 X;
  static constexpr bool SCALED = false;
  const LinearArgs &a;
  const Product<bf16> &p;
  const bf16 *w;
  bool aligned;

  DEVICE Plain(const LinearArgs &a, const Product<bf16> &p) : a(a), p(p), w(weights<bf16>(a, p)) {
    aligned = (size_t(p.x) | size_t(w)) % 16 == 0 && a.k % 8 == 0 && a.x_stride % 8 == 0;
  }
  DEVICE const bf16 *w_row(int r) const { return w + size_t(p.first_col + r) * a.k; }
  DEVICE void bring(bf16 *xs, bf16 *ws, int from) const {
    if (aligned) {
      bring_chunks(xs, p.rows, from, a.k, [&](int r) { return p.x_row(r); });
      bring_chunks(ws, a.n - p.first_col, from, a.k, [&](int r) { return w_row(r); });
    } else {
      linear::bring(xs, p.rows, from, a.k, [&](int r, int k) { return p.x_row(r)[k]; });
      linear::bring(ws, a.n - p.first_col, from, a.k, [&](int r, int k) { return w_row(r)[k]; });
    }
  }
  DEVICE int group() const { return DEPTH; }
  DEVICE float scale(int, int, int) const { return 1; }
};

struct Fp8 {
  typedef uint8_t X;
  static constexpr bool SCALED = true;
  const LinearArgs &a;
  const Product<uint8_t> &p;
  const uint8_t *w;
  const float *w_scales;
  int groups;

  DEVICE Fp8(const LinearArgs &a, const Product<uint8_t> &p) : a(a), p(p), w(weights<uint8_t>(a, p)) {
    groups = ceil_div(a.k, FP8_GROUP);
    w_scales = static_cast<const float *>(a.w_scales) + p.slot * ceil_div(a.n, FP8_GROUP) * groups;
  }
  DEVICE static Several<bf16, 8> widened(const uint8_t *from) {
    auto codes = *reinterpret_cast<const Several<uint8_t, 8> *>(from);
    Several<bf16, 8> numbers;
#pragma unroll
    for (int i = 0; i < 8; i++) numbers.of[i] = e4m3_to_bf16(codes.of[i]);
    return numbers;
  }
  DEVICE void bring(bf16 *xs, bf16 *ws, int from) const {
    auto x_row = [&](int r) { return p.x_row(r); };
    auto w_row = [&](int r) { return w + size_t(p.first_col + r) * a.k; };
    if ((size_t(p.x) | size_t(w)) % 8 == 0 && a.k % 8 == 0 && a.x_stride % 8 == 0) {
      bring_eights(xs, p.rows, from, a.k, [&](int r, int k) { return widened(x_row(r) + k); });
      bring_eights(ws, a.n - p.first_col, from, a.k, [&](int r, int k) { return widened(w_row(r) + k); });
    } else {
      linear::bring(xs, p.rows, from, a.k, [&](int r, int k) { return e4m3_to_bf16(x_row(r)[k]); });
      linear::bring(ws, a.n - p.first_col, from, a.k, [&](int r, int k) { return e4m3_to_bf16(w_row(r)[k]); });
    }
  }
  DEVICE int group() const { return FP8_GROUP; }
  DEVICE float scale(int r, int c, int g) const {
    return a.x_scales[p.x_index(r) * groups + g] * w_scales[size_t(c / FP8_GROUP) * groups + g];
  }
};

// Of four bits: an integer, as itself + 8.
struct Nibble {
  DEVICE static bf16 number(uint32_t code) { return to_bf16(float(int(code) - 8)); }
};

// Of four bits: a sign, two bits of exponent and one of mantissa.
struct E2m1 {
  DEVICE static bf16 number(uint32_t code) {
    uint32_t exponent = code >> 1 & 3, mantissa = code & 1;
    // 0 and 0.5 have the lowest exponent; others are (1 + mantissa / 2) * 2^(exponent - 1).
    uint32_t bits = exponent ? (126 + exponent) << 7 | mantissa << 6 : mantissa ? 126u << 7 : 0;
    return {uint16_t((code & 8) << 12 | bits)};
  }
};

template <class Scale, class Code = Nibble>
struct Int4 {
  typedef bf16 X;
  static constexpr bool SCALED = true;
  const LinearArgs &a;
  const Product<bf16> &p;
  const uint32_t *w;
  const Scale *w_scales;
  int words, groups;

  DEVICE Int4(const LinearArgs &a, const Product<bf16> &p) : a(a), p(p) {
    words = ceil_div(a.k, 8);
    groups = ceil_div(a.k, a.group);
    w = static_cast<const uint32_t *>(a.w) + p.slot * a.n * words;
    w_scales = static_cast<const Scale *>(a.w_scales) + p.slot * a.n * groups;
  }
  DEVICE void bring(bf16 *xs, bf16 *ws, int from) const {
    if (size_t(p.x) % 16 == 0 && a.k % 8 == 0 && a.x_stride % 8 == 0)
      bring_chunks(xs, p.rows, from, a.k, [&](int r) { return p.x_row(r); });
    else
      linear::bring(xs, p.rows, from, a.k, [&](int r, int k) { return p.x_row(r)[k]; });
    // What is past the end of a row meets zeros of x.
    bring_eights(ws, a.n - p.first_col, from, a.k, [&](int r, int k) {
      uint32_t word = w[size_t(p.first_col + r) * words + k / 8];
      Several<bf16, 8> numbers;
#pragma unroll
      for (int i = 0; i < 8; i++) numbers.of[i] = Code::number(word >> i * 4 & 15);
      return numbers;
    });
  }
  DEVICE int group() const { return a.group; }
  DEVICE float scale(int, int c, int g) const { return to_float(w_scales[size_t(c) * groups + g]); }
};

template <class Form, class Out>
DEVICE void tensor(const LinearArgs &a) {
  constexpr int TILE = 64 * PITCH;
  SHARED(Chunk16, tiles, 4 * TILE / 8);  // Two stages of x and w.
  bf16 *xs = reinterpret_cast<bf16 *>(tiles), *ws = xs + 2 * TILE;
  Product<typename Form::X> p(a);
  if (p.rows <= 0) return;
  Form form(a, p);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = warp / 2 * 32, col = warp % 2 * 32;
  // Of number e of the 16 x 8 matrix (i, j) of this lane, within the tile.
  auto row_of = [&](int i, int e) { return row + i * 16 + lane / 4 + e / 2 * 8; };
  auto col_of = [&](int j, int e) { return col + j * 8 + lane % 4 * 2 + e % 2; };
  float sums[2][4][4] = {}, parts[2][4][4] = {};
  int steps = ceil_div(a.k, DEPTH);
  if (steps > 0) {
    form.bring(xs, ws, 0);
    copy_async_commit();
  }
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) {
      int at = (step + 1) % 2 * TILE;
      form.bring(xs + at, ws + at, (step + 1) * DEPTH);
      copy_async_commit();
      copy_async_wait<1>();
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
          mma_m16n8k16(Form::SCALED ? parts[i][j] : sums[i][j], left[i], pair);
        }
    }
    int end = (step + 1) * DEPTH;
    if (Form::SCALED && (end % form.group() == 0 || end >= a.k)) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            int r = row_of(i, e), c = p.first_col + col_of(j, e);
            if (r < p.rows && c < a.n) sums[i][j][e] += parts[i][j][e] * form.scale(r, c, (end - 1) / form.group());
            parts[i][j][e] = 0;
          }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) store<Out>(a, p, row_of(i, e), p.first_col + col_of(j, e), sums[i][j][e]);
}

}  // namespace linear

ENTRY(linear_f32, (256), LinearArgs) { linear::plain(a); }
ENTRY(linear_bf16, (128, 4), LinearArgs) { linear::tensor<linear::Plain, bf16>(a); }
ENTRY(linear_bf16_f32, (128, 4), LinearArgs) { linear::tensor<linear::Plain, float>(a); }
ENTRY(linear_fp8, (128, 2), LinearArgs) { linear::tensor<linear::Fp8, bf16>(a); }
ENTRY(linear_fp8_f32, (128, 2), LinearArgs) { linear::tensor<linear::Fp8, float>(a); }
ENTRY(linear_int4, (128, 2), LinearArgs) { linear::tensor<linear::Int4<float>, bf16>(a); }
ENTRY(linear_int4_f32, (128, 2), LinearArgs) { linear::tensor<linear::Int4<float>, float>(a); }
ENTRY(linear_int4_bf16_scales, (128, 2), LinearArgs) { linear::tensor<linear::Int4<bf16>, bf16>(a); }
ENTRY(linear_int4_bf16_scales_f32, (128, 2), LinearArgs) { linear::tensor<linear::Int4<bf16>, float>(a); }
ENTRY(linear_mxfp4, (128, 2), LinearArgs) { linear::tensor<linear::Int4<bf16, linear::E2m1>, bf16>(a); }
ENTRY(linear_mxfp4_f32, (128, 2), LinearArgs) { linear::tensor<linear::Int4<bf16, linear::E2m1>, float>(a); }
