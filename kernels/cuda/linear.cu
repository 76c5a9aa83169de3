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
// Each number is a sum over k in steps of 16 (tensor cores) or 1 (w f32), in one order, whatever the rows are: there
// is no split of k. With scales, the sums of each group are scaled and added in f32. Error: that of f32 sums of k
// products, and of rounding to the type of out.
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

  // The row, or the last one.
  DEVICE int within(int r) const { return r < rows ? r : rows - 1; }
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

// ---- Tensor cores: 128 threads; each warp has 16 columns and all rows of the tile ----
//
// A stage has DEPTH columns of k. w stays in its own form: it comes by asynchronous copies, several stages ahead, and
// is widened in registers. x is widened once for the block, on its way to shared memory, a stage ahead. The warp's
// columns are the rows of the tensor core's left matrix, so that tiles of x can be as small as 8 rows.
//
// The tensor core gets the columns of k in another order than memory has them, the same for x and w: of each UNIT of
// 32, lane i has the eight from 8 * (i % 4) on, in the order of Form::place. So a lane reads its part of a row at once,
// and codes need not be sorted when they are widened.

constexpr int DEPTH = 64, UNIT = 32;
constexpr int FEW_BLOCKS = 2, ALL_BLOCKS = TILE_ROWS / 8;  // Of 8 rows.
constexpr int X_BYTES = 2 * DEPTH;                         // Of a row of x in a stage.
constexpr int X_STAGE = TILE_ROWS * X_BYTES;
constexpr int SCALES = 2 * TILE_COLS;  // Of a stage: of the rows, or of the columns for each unit.

// Where byte `at` of a tile with ROW bytes in each row is. Rows that are read together are in different banks.
template <int ROW>
DEVICE int swizzled(int at) {
  return at ^ (at >> 7 & 1) * (ROW / 2);
}

// Whether there was a NaN, from what `widen` collects.
DEVICE bool is_nan(uint32_t carries) { return (carries & 0x80808080) != 0; }

// The forms of x and w. w has rows of `row_bytes`, of which a stage has W_BYTES; STAGES are in shared memory. `place`
// is where number e of eight is, `number` one number of x. `widen` makes bf16 of eight numbers of w, `widen_x` of 16
// bytes of x, unless there is a NaN. BY_ROW: scales differ by row, otherwise by column; a group has `units` units.
// Scales come as x does: `load_scales` takes those of the next stage to registers.
struct Plain {
  typedef bf16 X;
  static constexpr bool SCALED = false, BY_ROW = false;
  static constexpr int W_BYTES = 2 * DEPTH, STAGES = 3;
  const unsigned char *w;
  int row_bytes;

  DEVICE Plain(const LinearArgs &a, const Product<bf16> &p)
      : w(reinterpret_cast<const unsigned char *>(weights<bf16>(a, p))), row_bytes(a.k * 2) {}
  DEVICE static int place(int e) { return e; }
  DEVICE static bf16 number(bf16 x) { return x; }
  DEVICE static bool widen_x(const Chunk16 &x, Chunk16 (&out)[1]) {
    out[0] = x;
    return true;
  }
  DEVICE static void widen(const uint32_t (&words)[4], uint32_t (&out)[4], uint32_t &) {
    for (int i = 0; i < 4; i++) out[i] = words[i];
  }
  DEVICE int units() const { return 1; }
  DEVICE void load_scales(int, int) {}
  DEVICE void store_scales(float *) const {}
};

struct Fp8 {
  typedef uint8_t X;
  static constexpr bool SCALED = true, BY_ROW = true;
  static constexpr int W_BYTES = DEPTH, STAGES = 4;
  const unsigned char *w;
  int row_bytes;
  const float *x_scales, *w_scales;
  int groups;
  float scale = 0;

  DEVICE Fp8(const LinearArgs &a, const Product<uint8_t> &p) : w(weights<uint8_t>(a, p)), row_bytes(a.k) {
    groups = ceil_div(a.k, FP8_GROUP);
    w_scales = static_cast<const float *>(a.w_scales) +
               (p.slot * ceil_div(a.n, FP8_GROUP) + p.first_col / FP8_GROUP) * groups;
    x_scales = a.x_scales + p.x_index(p.within(threadIdx.x)) * groups;
  }
  // As the halves of words: numbers 0 and 2, then 1 and 3.
  DEVICE static int place(int e) { return (e & 4) | (e & 1) << 1 | (e >> 1 & 1); }
  DEVICE static bf16 number(uint8_t x) { return e4m3_to_bf16(x); }
  DEVICE static bool widen_x(const Chunk16 &x, Chunk16 (&out)[2]) {
    uint32_t nan = 0;
    for (int i = 0; i < 2; i++) widen({x.words[2 * i], x.words[2 * i + 1]}, out[i].words, nan);
    return !is_nan(nan);
  }
  DEVICE static void widen(const uint32_t (&words)[2], uint32_t (&out)[4], uint32_t &nan) {
    for (int i = 0; i < 2; i++) {
      e4m3_to_bf16(words[i], out[2 * i], out[2 * i + 1]);
      // Only 0x7f reaches the place of the sign.
      nan |= (words[i] & 0x7f7f7f7f) + 0x01010101;
    }
  }
  DEVICE int units() const { return FP8_GROUP / UNIT; }
  DEVICE void load_scales(int stage, int rows) {
    int g = stage * DEPTH / FP8_GROUP;
    scale = threadIdx.x < unsigned(rows) && g < groups ? x_scales[g] * w_scales[g] : 0;
  }
  DEVICE void store_scales(float *to) const {
    if (threadIdx.x < TILE_ROWS) to[threadIdx.x] = scale;
  }
};

// Of four bits: an integer, as itself + 8.
struct Nibble {
  // Codes as the last bits of 128 to 143, of which 136 is taken.
  template <int PAIR>
  DEVICE static uint32_t numbers(uint32_t word) {
    return fma_bf16x2(and_or(word >> 4 * PAIR, 0x000f000f, 0x43004300), 0x3f803f80, 0xc308c308);
  }
};

// Of four bits: a sign, two bits of exponent and one of mantissa.
struct E2m1 {
  // The bits as those of a bf16 have an exponent that is 126 too small; this holds for subnormal codes too.
  template <int PAIR>
  DEVICE static uint32_t numbers(uint32_t word) {
    constexpr int UP = 6 - 4 * PAIR;
    uint32_t magnitude = (UP > 0 ? word << (UP & 7) : word >> (-UP & 7)) & 0x01c001c0;
    return fma_bf16x2(magnitude | (word << (12 - 4 * PAIR) & 0x80008000), 0x7e807e80, 0x80008000);
  }
};

template <class Scale, class Code = Nibble>
struct Int4 {
  typedef bf16 X;
  static constexpr bool SCALED = true, BY_ROW = false;
  static constexpr int W_BYTES = DEPTH / 2, STAGES = 8;
  const unsigned char *w;
  int row_bytes;
  const Scale *w_scales;
  int groups, of_group, group = 0, left;  // Units of a group, and those that are left of the one to be loaded.
  float scales[DEPTH / UNIT] = {};

  DEVICE Int4(const LinearArgs &a, const Product<bf16> &p) {
    row_bytes = ceil_div(a.k, 8) * 4;
    w = static_cast<const unsigned char *>(a.w) + p.slot * a.n * row_bytes;
    groups = ceil_div(a.k, a.group);
    left = of_group = a.group / UNIT;
    size_t col = p.first_col + threadIdx.x % TILE_COLS;
    w_scales = static_cast<const Scale *>(a.w_scales) + (p.slot * a.n + (col < size_t(a.n) ? col : 0)) * groups;
  }
  // As the halves of words: numbers i and i + 4.
  DEVICE static int place(int e) { return (e & 3) << 1 | e >> 2; }
  DEVICE static bf16 number(bf16 x) { return x; }
  DEVICE static bool widen_x(const Chunk16 &x, Chunk16 (&out)[1]) {
    for (int i = 0; i < 2; i++) {
      out[0].words[2 * i] = (x.words[i] & 0xffff) | x.words[i + 2] << 16;
      out[0].words[2 * i + 1] = x.words[i] >> 16 | (x.words[i + 2] & 0xffff0000);
    }
    return true;
  }
  DEVICE static void widen(const uint32_t (&words)[1], uint32_t (&out)[4], uint32_t &) {
    out[0] = Code::template numbers<0>(words[0]);
    out[1] = Code::template numbers<1>(words[0]);
    out[2] = Code::template numbers<2>(words[0]);
    out[3] = Code::template numbers<3>(words[0]);
  }
  DEVICE int units() const { return of_group; }
  DEVICE void load_scales(int, int) {
#pragma unroll
    for (float &scale : scales) {
      scale = threadIdx.x < TILE_COLS && group < groups ? to_float(w_scales[group]) : 0;
      if (--left == 0) left = of_group, group++;
    }
  }
  DEVICE void store_scales(float *to) const {
    if (threadIdx.x >= TILE_COLS) return;
#pragma unroll
    for (int u = 0; u < DEPTH / UNIT; u++) to[u * TILE_COLS + threadIdx.x] = scales[u];
  }
};

// w, stage by stage. Columns beyond the last repeat it: they are not stored.
template <class Form>
struct WeightCopies {
  static constexpr int OF_ROW = Form::W_BYTES / 16, COUNT = TILE_COLS * OF_ROW / 128;
  const unsigned char *from[COUNT];
  int row_bytes;
  bool aligned;

  DEVICE WeightCopies(const Form &form, int first_col, int n) : row_bytes(form.row_bytes) {
    aligned = (size_t(form.w) | size_t(row_bytes)) % 16 == 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      int chunk = threadIdx.x + i * 128, col = first_col + chunk / OF_ROW;
      from[i] = form.w + size_t(col < n ? col : n - 1) * size_t(row_bytes);
    }
  }
  DEVICE void issue(unsigned char *to, int stage) const {
    int at = stage * Form::W_BYTES + int(threadIdx.x % OF_ROW * 16);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      unsigned char *chunk = to + swizzled<Form::W_BYTES>((threadIdx.x + i * 128) * 16);
      if (aligned)
        // With no valid bytes nothing is read; the address must still be one.
        copy_async_16<true>(chunk, from[i] + (at < row_bytes ? at : 0), at < row_bytes ? 16 : 0);
      else
#pragma unroll 1
        for (int b = 0; b < 16; b++) chunk[b] = at + b < row_bytes ? from[i][at + b] : 0;
    }
  }
};

// x, stage by stage: `load` takes a stage to registers, `store` widens it into shared memory. Rows beyond the last
// repeat it: they are not stored.
template <class Form, int BLOCKS>
struct RowCopies {
  typedef typename Form::X X;
  static constexpr int NUMBERS = 16 / sizeof(X), OF_ROW = DEPTH / NUMBERS;
  static constexpr int CHUNKS = BLOCKS * 8 * OF_ROW, COUNT = ceil_div(CHUNKS, 128);
  const X *from[COUNT];
  Chunk16 chunks[COUNT] = {};
  int k;
  bool aligned;

  DEVICE RowCopies(const LinearArgs &a, const Product<X> &p) : k(a.k) {
    aligned = size_t(p.x) % 16 == 0 && k % NUMBERS == 0 && a.x_stride % NUMBERS == 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      from[i] = p.x_row(p.within((threadIdx.x + i * 128) / OF_ROW)) + threadIdx.x % OF_ROW * NUMBERS;
  }
  DEVICE int first(int stage) const { return stage * DEPTH + threadIdx.x % OF_ROW * NUMBERS; }
  DEVICE bool mine(int i) const { return CHUNKS % 128 == 0 || threadIdx.x + i * 128 < unsigned(CHUNKS); }
  DEVICE void load(int stage) {
    if (!aligned) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      chunks[i] = mine(i) && first(stage) < k ? *reinterpret_cast<const Chunk16 *>(from[i] + size_t(stage) * DEPTH)
                                              : Chunk16{};
  }
  DEVICE void store(unsigned char *to, int stage) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (!mine(i)) continue;
      Chunk16 wide[2 / sizeof(X)];
      Chunk16 *into[2 / sizeof(X)];
      // A thread's numbers are in order in shared memory, but for the swizzle.
      constexpr int WIDE = sizeof wide;
      static_assert(WIDE * OF_ROW == X_BYTES);
      for (int j = 0; j < WIDE / 16; j++)
        into[j] = reinterpret_cast<Chunk16 *>(to + swizzled<X_BYTES>((threadIdx.x + i * 128) * WIDE + 16 * j));
      if (aligned && Form::widen_x(chunks[i], wide)) {
        for (int j = 0; j < WIDE / 16; j++) *into[j] = wide[j];
        continue;
      }
#pragma unroll 1
      for (int e = 0; e < NUMBERS; e++) {
        bf16 number = first(stage) + e < k ? Form::number(from[i][size_t(stage) * DEPTH + e]) : bf16{0};
        reinterpret_cast<bf16 *>(e < 8 ? into[0] : into[WIDE / 16 - 1])[Form::place(e % 8)] = number;
      }
    }
  }
};

// A tile with BLOCKS * 8 rows.
template <class Form, class Out, int BLOCKS>
DEVICE void tensor_rows(const LinearArgs &a, const Product<typename Form::X> &p, unsigned char *shared) {
  constexpr int W_STAGE = TILE_COLS * Form::W_BYTES, OF_LANE = Form::W_BYTES / 8, AHEAD = Form::STAGES - 1;
  unsigned char *xs = shared, *ws = shared + 2 * X_STAGE;
  float *all_scales = reinterpret_cast<float *>(ws + Form::STAGES * W_STAGE);
  Form form(a, p);
  WeightCopies<Form> w_copies(form, p.first_col, a.n);
  RowCopies<Form, BLOCKS> x_copies(a, p);
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  // Of columns g and g + 8 of the warp, rows 2t and 2t + 1 of block j.
  float sums[BLOCKS][4] = {}, parts[BLOCKS][4] = {};
  uint32_t nan[2] = {};
  int stages = ceil_div(a.k, DEPTH), left = form.units();
  auto add_parts = [&](const float *scales) {
    float of_columns[2] = {};
    if (!Form::BY_ROW)
      for (int i = 0; i < 2; i++) of_columns[i] = scales[warp * 16 + g + 8 * i];
#pragma unroll
    for (int j = 0; j < BLOCKS; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        sums[j][e] += parts[j][e] * (Form::BY_ROW ? scales[j * 8 + 2 * t + e % 2] : of_columns[e / 2]);
        parts[j][e] = 0;
      }
  };
  auto load_x = [&](int stage) {
    x_copies.load(stage);
    form.load_scales(stage, p.rows);
  };
  auto store_x = [&](int stage) {
    x_copies.store(xs + stage % 2 * X_STAGE, stage);
    form.store_scales(all_scales + stage % 2 * SCALES);
  };
  for (int stage = 0; stage < AHEAD; stage++) {
    if (stage < stages) w_copies.issue(ws + stage * W_STAGE, stage);
    copy_async_commit();
  }
  if (stages > 0) {
    load_x(0);
    store_x(0);
    load_x(1);
  }
  int x_lane = swizzled<X_BYTES>(g * X_BYTES + t * 16);
  int w_lane = swizzled<Form::W_BYTES>((warp * 16 + g) * Form::W_BYTES + t * OF_LANE);
  for (int stage = 0; stage < stages; stage++) {
    copy_async_wait<AHEAD - 1>();
    // This stage is there; all threads are done with the one before, whose places are free.
    __syncthreads();
    if (stage + AHEAD < stages) w_copies.issue(ws + unsigned(stage + AHEAD) % Form::STAGES * W_STAGE, stage + AHEAD);
    copy_async_commit();
    if (stage + 1 < stages) {
      store_x(stage + 1);
      load_x(stage + 2);
    }
    const unsigned char *x = xs + stage % 2 * X_STAGE, *w = ws + unsigned(stage) % Form::STAGES * W_STAGE;
    const float *scales = all_scales + stage % 2 * SCALES;
#pragma unroll
    for (int u = 0; u < DEPTH / UNIT; u++) {
      uint32_t columns[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        struct alignas(OF_LANE) Words {
          uint32_t of[OF_LANE / 4];
        } words = *reinterpret_cast<const Words *>(w + (w_lane ^ u * (Form::W_BYTES / 2)) + i * 8 * Form::W_BYTES);
        Form::widen(words.of, columns[i], nan[i]);
      }
#pragma unroll
      for (int j = 0; j < BLOCKS; j++) {
        auto rows = *reinterpret_cast<const Chunk16 *>(x + (x_lane ^ u * (X_BYTES / 2)) + j * 8 * X_BYTES);
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
          uint32_t left_matrix[4] = {columns[0][half], columns[1][half], columns[0][half + 1], columns[1][half + 1]};
          uint32_t right_matrix[2] = {rows.words[half], rows.words[half + 1]};
          mma_m16n8k16(Form::SCALED ? parts[j] : sums[j], left_matrix, right_matrix);
        }
      }
      // A group of FP8 ends with a stage.
      constexpr int STEP = Form::BY_ROW ? DEPTH / UNIT : 1;
      if (Form::SCALED && (u + 1) % STEP == 0 && (left -= STEP) == 0) {
        add_parts(scales + (Form::BY_ROW ? 0 : u * TILE_COLS));
        left = form.units();
      }
    }
  }
  copy_async_wait<0>();
  // The last group may be a part of one.
  if (Form::SCALED && left != form.units())
    add_parts(all_scales + (stages - 1) % 2 * SCALES + (Form::BY_ROW ? 0 : TILE_COLS));
#pragma unroll
  for (int i = 0; i < 2; i++) {
    // Of all lanes that have numbers of the column.
    bool lost = (warp_ballot(is_nan(nan[i])) >> g * 4 & 15) != 0;
#pragma unroll
    for (int j = 0; j < BLOCKS; j++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        store<Out>(a, p, j * 8 + 2 * t + e, p.first_col + warp * 16 + g + 8 * i,
                   lost ? bits_float(0x7fffffff) : sums[j][2 * i + e]);
  }
}

template <class Form, class Out>
DEVICE void tensor(const LinearArgs &a) {
  SHARED(Chunk16, shared, (2 * X_STAGE + Form::STAGES * TILE_COLS * Form::W_BYTES + 8 * SCALES) / 16);
  Product<typename Form::X> p(a);
  if (p.rows <= 0) return;
  auto *bytes = reinterpret_cast<unsigned char *>(shared);
  if (p.rows <= FEW_BLOCKS * 8)
    tensor_rows<Form, Out, FEW_BLOCKS>(a, p, bytes);
  else
    tensor_rows<Form, Out, ALL_BLOCKS>(a, p, bytes);
}

}  // namespace linear

ENTRY(linear_f32, (256), LinearArgs) { linear::plain(a); }
ENTRY(linear_bf16, (128, 4), LinearArgs) { linear::tensor<linear::Plain, bf16>(a); }
ENTRY(linear_bf16_f32, (128, 4), LinearArgs) { linear::tensor<linear::Plain, float>(a); }
ENTRY(linear_fp8, (128, 3), LinearArgs) { linear::tensor<linear::Fp8, bf16>(a); }
ENTRY(linear_fp8_f32, (128, 3), LinearArgs) { linear::tensor<linear::Fp8, float>(a); }
ENTRY(linear_int4, (128, 3), LinearArgs) { linear::tensor<linear::Int4<float>, bf16>(a); }
ENTRY(linear_int4_f32, (128, 3), LinearArgs) { linear::tensor<linear::Int4<float>, float>(a); }
ENTRY(linear_int4_bf16_scales, (128, 3), LinearArgs) { linear::tensor<linear::Int4<bf16>, bf16>(a); }
ENTRY(linear_int4_bf16_scales_f32, (128, 3), LinearArgs) { linear::tensor<linear::Int4<bf16>, float>(a); }
ENTRY(linear_mxfp4, (128, 3), LinearArgs) { linear::tensor<linear::Int4<bf16, linear::E2m1>, bf16>(a); }
ENTRY(linear_mxfp4_f32, (128, 3), LinearArgs) { linear::tensor<linear::Int4<bf16, linear::E2m1>, float>(a); }
