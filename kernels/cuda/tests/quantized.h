// FP8 codes, quantize_fp8, silu_mul_quant, and linear with FP8 and int4 weights, against plain loops.
#include "check.h"

namespace quantized_tests {

using check::Buffer;
using check::Random;
using check::value;

// The value of a code, from its definition.
inline double e4m3(uint8_t code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  double magnitude = exponent ? std::ldexp(1 + mantissa / 8.0, exponent - 7) : std::ldexp(mantissa / 8.0, -6);
  if ((code & 0x7f) == 0x7f) return NAN;
  return code & 0x80 ? -magnitude : magnitude;
}

inline void codes() {
  check::test = "e4m3";
  for (int code = 0; code < 256; code++) {
    double want = e4m3(code), got = to_float(e4m3_to_bf16(code));
    if (got != want && !(std::isnan(got) && std::isnan(want))) check::fail("the value of code " + std::to_string(code));
    if (!std::isnan(want) && code != 0x80) check::equal(to_e4m3(want), code, "the code of a value");
  }
  // Between two codes the nearer, in the middle the even one.
  for (int code = 0; code < 0x7e; code++) {
    double low = e4m3(code), high = e4m3(code + 1);
    check::equal(to_e4m3(low * 0.51 + high * 0.49), code, "below the middle");
    check::equal(to_e4m3(low * 0.49 + high * 0.51), code + 1, "above the middle");
    check::equal(to_e4m3((low + high) / 2), code % 2 ? code + 1 : code, "the middle");
    check::equal(to_e4m3(-(low + high) / 2), (code % 2 ? code + 1 : code) | 0x80, "the negative middle");
  }
  check::equal(to_e4m3(1e9f), 0x7e, "too large");
  check::equal(to_e4m3(-INFINITY), 0xfe, "minus infinity");
  check::equal(to_e4m3(NAN), 0x7f, "NaN");
}

template <class T>
void quantize(int rows, int k, int stride) {
  check::every_order("quantize_fp8", [&] {
    Random random(k);
    auto x = random.numbers<T>(size_t(rows) * stride, 30);
    for (int i = 0; i < std::min(k, 128); i++) x[i] = from_float<T>(0);  // A group of zeros.
    int groups = (k + 127) / 128;
    Buffer<T> xs(x);
    Buffer<uint8_t> out(size_t(rows) * k);
    Buffer<float> scales(size_t(rows) * groups);
    QuantizeArgs args = {xs.data, {out.data, scales.data, 0}, nullptr, nullptr, k, stride, 1};
    auto kernel = sizeof(T) == 4 ? quantize_fp8_f32 : quantize_fp8_bf16;
    LAUNCH(kernel, dim3(rows, (groups + 7) / 8), 256, 0, args);
    for (int r = 0; r < rows; r++)
      for (int g = 0; g < groups; g++) {
        double largest = 0;
        for (int i = g * 128; i < std::min(k, g * 128 + 128); i++)
          largest = std::max(largest, std::fabs(value(x, size_t(r) * stride + i)));
        float scale = largest > 0 ? float(largest) / 448 : 1;
        if (scales[r * groups + g] != scale) check::fail("scale");
        for (int i = g * 128; i < std::min(k, g * 128 + 128); i++) {
          uint8_t code = out[size_t(r) * k + i];
          double want = value(x, size_t(r) * stride + i) / scale, apart = std::fabs(e4m3(code) - want);
          if (!(apart <= std::max(std::fabs(want) / 16, 1.0 / 1024) * 1.000001)) check::fail("code");
        }
      }
    return check::bytes(out) + check::bytes(scales);
  });
}

template <class T>
void silu_mul_quantize(int rows, int k) {
  check::every_order("silu_mul_quant", [&] {
    Random random(rows + k);
    int groups = (k + 127) / 128, stride = 2 * k + k % 2;
    auto x = random.numbers<T>(size_t(rows) * stride, 20);
    for (int i = 0; i < std::min(k, 128); i++) x[k + i] = from_float<T>(0);  // A group of zeros.
    Buffer<T> xs(x), product(size_t(rows) * k);
    Buffer<uint8_t> codes(product.size), want_codes(product.size);
    Buffer<float> scales(size_t(rows) * groups), want_scales(scales.size);
    SiluMulQuantArgs args = {xs.data, xs.data + k, {codes.data, scales.data, 0}, nullptr, nullptr, k, stride};
    auto kernel = sizeof(T) == 4 ? silu_mul_quant_f32 : silu_mul_quant_bf16;
    LAUNCH(kernel, dim3(rows, (groups + 7) / 8), 256, 0, args);
    SiluMulArgs silu_args = {xs.data, xs.data + k, product.data, nullptr, nullptr, k, stride};
    auto silu_mul = sizeof(T) == 4 ? silu_mul_f32 : silu_mul_bf16;
    LAUNCH(silu_mul, dim3(rows, (k + 2047) / 2048), 256, 0, silu_args);
    QuantizeArgs quantize_args = {product.data, {want_codes.data, want_scales.data, 0}, nullptr, nullptr, k, k, 1};
    auto quantize = sizeof(T) == 4 ? quantize_fp8_f32 : quantize_fp8_bf16;
    LAUNCH(quantize, dim3(rows, (groups + 7) / 8), 256, 0, quantize_args);
    std::string bytes = check::bytes(codes) + check::bytes(scales);
    if (bytes != check::bytes(want_codes) + check::bytes(want_scales)) check::fail("other bits than in two steps");
    return bytes;
  });
}

// One product, or (experts > 0) one for each expert, with one route per row.
template <class Out>
void fp8(int rows, int n, int k, int experts) {
  check::every_order("linear_fp8", [&] {
    Random random(rows + n + k);
    int groups = (k + 127) / 128, row_groups = (n + 127) / 128, slots = std::max(1, experts);
    auto code = [&] { return uint8_t(random.below(127) | random.below(2) << 7); };
    std::vector<uint8_t> x(size_t(rows) * k), w(size_t(slots) * n * k);
    for (auto &c : x) c = code();
    for (auto &c : w) c = code();
    auto x_scales = random.numbers<float>(size_t(rows) * groups);
    auto w_scales = random.numbers<float>(size_t(slots) * row_groups * groups);
    std::vector<uint32_t> order, starts = {0}, slot;
    for (int e = 0; e < experts; e++) {
      for (int r = 0; r < rows; r++)
        if (r % experts == e) order.push_back(r);
      starts.push_back(order.size());
      slot.push_back(experts - 1 - e);
    }
    Buffer<uint8_t> xs(x), ws(w);
    Buffer<float> x_scale_buffer(x_scales), w_scale_buffer(w_scales);
    Buffer<uint32_t> orders(order), start_buffer(starts), slot_buffer(slot);
    Buffer<Out> out(size_t(rows) * n);
    LinearArgs args = {};
    args.x = xs.data, args.w = ws.data, args.out = out.data;
    args.x_scales = x_scale_buffer.data, args.w_scales = w_scale_buffer.data;
    args.rows = rows, args.n = n, args.k = k, args.x_stride = k, args.out_stride = n, args.routes_per_row = 1;
    if (experts) args.order = orders.data, args.starts = start_buffer.data, args.weight_slots = slot_buffer.data;
    auto kernel = sizeof(Out) == 4 ? linear_fp8_f32 : linear_fp8;
    LAUNCH(kernel, dim3((n + 63) / 64, (rows + 63) / 64, slots), 128, 0, args);
    for (int r = 0; r < rows; r++) {
      size_t s = experts ? slot[r % experts] : 0;
      std::vector<double> want(n, 0);
      for (int c = 0; c < n; c++)
        for (int i = 0; i < k; i++)
          want[c] += e4m3(x[size_t(r) * k + i]) * x_scales[r * groups + i / 128] * e4m3(w[(s * n + c) * k + i]) *
                     w_scales[(s * row_groups + c / 128) * groups + i / 128];
      check::close(out.data + size_t(r) * n, want);
    }
    return check::bytes(out);
  });
}

// Row `row` of `rows` has the bits that it has alone. `x_bytes`: of a row; `numbers`: of x_scales in a row.
inline void row_alone(void (*kernel)(LinearArgs), LinearArgs args, int row, int x_bytes, int numbers) {
  check::test = "a row of linear with scales";
  int rows = args.rows;
  Buffer<float> together(size_t(rows) * args.n), alone(args.n);
  dim3 grid((args.n + 63) / 64, (rows + 63) / 64);
  args.out = together.data;
  LAUNCH(kernel, grid, 128, 0, args);
  args.x = static_cast<const char *>(args.x) + size_t(row) * x_bytes;
  if (args.x_scales) args.x_scales += size_t(row) * numbers;
  args.out = alone.data, args.rows = 1, grid.y = 1;
  LAUNCH(kernel, grid, 128, 0, args);
  if (memcmp(alone.data, together.data + size_t(row) * args.n, args.n * 4)) check::fail("it depends on the others");
}

// Among few rows and among many. Widths are such that copies are wide, and such that they are not.
inline void rows_alone() {
  for (int k : {288, 290}) {
    Random random(k);
    constexpr int ROWS = 70, N = 66;
    int groups = (k + 127) / 128, small_groups = (k + 31) / 32, words = (k + 7) / 8;
    std::vector<uint8_t> codes(size_t(ROWS) * k);
    for (auto &code : codes) code = uint8_t(random.below(127) | random.below(2) << 7);
    std::vector<uint32_t> nibbles(size_t(N) * words);
    for (auto &word : nibbles) word = uint32_t(random.next());
    Buffer<uint8_t> fp8(codes);
    Buffer<uint32_t> int4(nibbles);
    Buffer<bf16> x(random.numbers<bf16>(size_t(ROWS) * k)), scales(random.numbers<bf16>(size_t(N) * small_groups));
    Buffer<float> x_scales(random.numbers<float>(size_t(ROWS) * groups)), w_scales(random.numbers<float>(groups));
    for (int rows : {13, 40, ROWS}) {
      LinearArgs args = {};
      args.rows = rows, args.n = args.out_stride = N, args.k = args.x_stride = k, args.group = 32;
      args.x = args.w = fp8.data, args.x_scales = x_scales.data, args.w_scales = w_scales.data;
      row_alone(linear_fp8_f32, args, rows - 2, k, groups);
      args.x = x.data, args.w = int4.data, args.x_scales = nullptr, args.w_scales = scales.data;
      row_alone(linear_int4_bf16_scales_f32, args, rows - 2, 2 * k, 0);
      row_alone(linear_mxfp4_f32, args, rows - 2, 2 * k, 0);
    }
  }
}

// A code that is no number makes its row, or its column, none.
inline void lost_numbers() {
  check::test = "NaN in linear_fp8";
  constexpr int ROWS = 20, N = 66, K = 144, ROW = 18, COL = 65;
  for (bool in_x : {true, false}) {
    std::vector<uint8_t> x(ROWS * K, 0x38), w(N * K, 0xb8);
    (in_x ? x[ROW * K + 77] : w[COL * K + 131]) = in_x ? 0x7f : 0xff;
    Buffer<uint8_t> xs(x), ws(w);
    Buffer<float> x_scales(std::vector<float>(ROWS * 2, 1)), w_scales(std::vector<float>(2, 1)), out(ROWS * N);
    LinearArgs args = {};
    args.x = xs.data, args.w = ws.data, args.x_scales = x_scales.data, args.w_scales = w_scales.data;
    args.out = out.data, args.rows = ROWS, args.n = args.out_stride = N, args.k = args.x_stride = K;
    LAUNCH(linear_fp8_f32, dim3(2, 1), 128, 0, args);
    for (int r = 0; r < ROWS; r++)
      for (int c = 0; c < N; c++)
        if (in_x ? r == ROW : c == COL)
          check::equal(std::isnan(out[r * N + c]), 1, "NaN");
        else
          check::close(&out[r * N + c], {-double(K)}, 0);
  }
}

// With bf16 scales, the bits are those of the same scales as f32.
template <class Out>
void int4(int rows, int n, int k, int group) {
  check::every_order("linear_int4", [&] {
    Random random(rows + n + k + group);
    int words = (k + 7) / 8, groups = (k + group - 1) / group;
    auto x = random.numbers<bf16>(size_t(rows) * k);
    std::vector<uint32_t> w(size_t(n) * words);
    for (auto &word : w) word = uint32_t(random.next());
    auto scales = random.numbers<bf16>(size_t(n) * groups);
    std::vector<float> wide_scales;
    for (bf16 scale : scales) wide_scales.push_back(to_float(scale));
    Buffer<bf16> xs(x);
    Buffer<uint32_t> ws(w);
    Buffer<bf16> scale_buffer(scales);
    Buffer<float> wide_buffer(wide_scales);
    Buffer<Out> out(size_t(rows) * n), of_wide(size_t(rows) * n);
    LinearArgs args = {};
    args.x = xs.data, args.w = ws.data, args.out = of_wide.data, args.w_scales = wide_buffer.data;
    args.rows = rows, args.n = n, args.k = k, args.x_stride = k, args.out_stride = n, args.group = group;
    dim3 grid((n + 63) / 64, (rows + 63) / 64);
    auto wide_kernel = sizeof(Out) == 4 ? linear_int4_f32 : linear_int4;
    LAUNCH(wide_kernel, grid, 128, 0, args);
    args.out = out.data, args.w_scales = scale_buffer.data;
    auto kernel = sizeof(Out) == 4 ? linear_int4_bf16_scales_f32 : linear_int4_bf16_scales;
    LAUNCH(kernel, grid, 128, 0, args);
    if (check::bytes(out) != check::bytes(of_wide)) check::fail("other bits with bf16 scales than with f32 scales");
    auto compare = [&](auto number_of) {
      for (int r = 0; r < rows; r++) {
        std::vector<double> want(n, 0);
        for (int c = 0; c < n; c++)
          for (int i = 0; i < k; i++) {
            double number = number_of(w[size_t(c) * words + i / 8] >> i % 8 * 4 & 15);
            want[c] += value(x, size_t(r) * k + i) * number * wide_scales[c * groups + i / group];
          }
        check::close(out.data + size_t(r) * n, want);
      }
      return check::bytes(out);
    };
    std::string bytes = compare([](int code) { return code - 8; });
    auto kernel_of_floats = sizeof(Out) == 4 ? linear_mxfp4_f32 : linear_mxfp4;
    LAUNCH(kernel_of_floats, grid, 128, 0, args);
    const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return bytes + compare([&](int code) { return code & 8 ? -e2m1[code & 7] : e2m1[code]; });
  });
}

inline void test() {
  codes();
  quantize<float>(2, 300, 301);
  quantize<bf16>(3, 128, 128);
  quantize<bf16>(1, 5, 8);
  silu_mul_quantize<float>(2, 300);
  silu_mul_quantize<bf16>(3, 257);
  silu_mul_quantize<bf16>(1, 5);
  silu_mul_quantize<float>(2, 1284);  // Numbers are read four at a time.
  silu_mul_quantize<bf16>(2, 2056);
  fp8<float>(3, 70, 300, 0);
  fp8<bf16>(1, 200, 128, 0);
  fp8<float>(2, 5, 7, 0);
  fp8<bf16>(7, 140, 160, 3);
  fp8<float>(70, 66, 400, 0);
  fp8<bf16>(130, 70, 272, 3);
  int4<bf16>(70, 66, 448, 32);
  int4<float>(20, 70, 384, 96);
  rows_alone();
  lost_numbers();
  int4<float>(3, 70, 256, 32);
  int4<bf16>(2, 64, 100, 32);
  int4<float>(1, 3, 260, 128);
}

}  // namespace quantized_tests
