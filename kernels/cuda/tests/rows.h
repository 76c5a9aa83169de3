// Kernels that work row by row against plain loops: embed, norms, silu_mul, gelu_mul, gather, rope and cache writes.
#include "check.h"

namespace row_tests {

using check::Buffer;
using check::Random;
using check::value;

template <class T>
constexpr bool IS_F32 = sizeof(T) == 4;

// A function for either type.
#define FOR_TYPE(T, kernel) (IS_F32<T> ? kernel##_f32 : kernel##_bf16)

inline std::string named(const char *kernel, const char *type, std::initializer_list<int> shape) {
  std::string name = std::string(kernel) + "_" + type;
  for (int n : shape) name += " " + std::to_string(n);
  return name;
}

template <class T>
void embed(int rows, int vocab, int hidden) {
  check::every_order(named("embed", check::type_name<T>(), {rows, vocab, hidden}), [&] {
    Random random(rows + hidden);
    auto table = random.numbers<T>(size_t(vocab) * hidden);
    std::vector<uint32_t> ids(rows);
    for (auto &id : ids) id = random.below(vocab);
    if (rows > 2) ids[1] = NONE;
    Buffer<T> tables(table);
    Buffer<uint32_t> id_buffer(ids);
    Buffer<float> out(size_t(rows) * hidden);
    EmbedArgs args = {tables.data, id_buffer.data, out.data, hidden, 0, uint32_t(vocab)};
    host::launch("embed", rows, 256, 0, [&] { FOR_TYPE(T, embed)(args); });
    std::vector<double> want(out.size);
    for (size_t i = 0; i < want.size(); i++) {
      uint32_t id = ids[i / hidden];
      want[i] = id == NONE ? 0 : value(table, size_t(id) * hidden + i % hidden);
    }
    check::close(out.data, want, 0);
    return check::bytes(out);
  });
}

// The codes that a norm stores beside its result: those of quantize_fp8.
template <class T>
struct NormCodes {
  int rows, n, groups, stride;
  Buffer<uint8_t> codes;
  Buffer<float> scales;
  NormCodes(int rows, int n, bool by_group)
      : rows(rows), n(n), groups((n + 127) / 128), stride(by_group ? rows + 1 : 0), codes(size_t(rows) * n),
        scales(size_t(groups) * std::max(rows, stride)) {}
  Codes to() { return {codes.data, scales.data, stride}; }
  void compare(Buffer<T> &out) {
    NormCodes want(rows, n, stride > 0);
    QuantizeArgs args = {out.data, want.to(), nullptr, nullptr, n, n, 1};
    host::launch("quantize", dim3(rows, (groups + 7) / 8), 256, 0, [&] { FOR_TYPE(T, quantize_fp8)(args); });
    if (check::bytes(codes) != check::bytes(want.codes)) check::fail("other codes than those of the result");
    if (check::bytes(scales) != check::bytes(want.scales)) check::fail("other scales than those of the result");
  }
};

template <class Y, class T>
void add_norm(int rows, int n, bool with_y) {
  check::every_order(named("add_norm", check::type_name<T>(), {int(sizeof(Y)), rows, n, with_y}), [&] {
    Random random(rows * 31 + n);
    auto x = random.numbers<float>(size_t(rows) * n), weight = random.numbers<float>(n);
    auto y = random.numbers<Y>(x.size());
    if (rows > 1) std::fill(x.begin(), x.begin() + n, 0.0f), std::fill(y.begin(), y.begin() + n, from_float<Y>(0));
    Buffer<float> xs(x), weights(weight);
    Buffer<Y> ys(y);
    Buffer<T> out(x.size());
    NormCodes<T> codes(rows, n, with_y);
    AddNormArgs args = {xs.data, with_y ? ys.data : nullptr, weights.data, out.data, codes.to(), n, 0.5f, 1e-5f};
    auto kernel = IS_F32<Y> && !IS_F32<T> ? add_norm_f32_bf16 : FOR_TYPE(T, add_norm);
    host::launch("add_norm", rows, 256, 0, [&] { kernel(args); });
    std::vector<double> sum(x.size()), want(x.size());
    for (int r = 0; r < rows; r++) {
      double squares = 0;
      for (int i = 0; i < n; i++) {
        size_t at = size_t(r) * n + i;
        sum[at] = x[at] + (with_y ? 0.5 * value(y, at) : 0);
        squares += sum[at] * sum[at];
      }
      for (int i = 0; i < n; i++)
        want[size_t(r) * n + i] = sum[size_t(r) * n + i] / std::sqrt(squares / n + 1e-5f) * weight[i];
    }
    check::close(xs.data, sum, 1e-6);
    check::close(out.data, want);
    codes.compare(out);
    return check::bytes(xs) + check::bytes(out);
  });
}

template <class T>
void group_norm(int rows, int groups, int n, int stride) {
  check::every_order(named("group_norm", check::type_name<T>(), {rows, groups, n, stride}), [&] {
    Random random(rows + n);
    auto x = random.numbers<T>(size_t(rows) * stride);
    auto weight = random.numbers<float>(n);
    Buffer<T> xs(x), out(size_t(rows) * groups * n);
    Buffer<float> weights(weight);
    NormCodes<T> codes(rows, n, true);
    GroupNormArgs args = {xs.data, weights.data, out.data, groups == 1 ? codes.to() : Codes{}, n, stride, 1e-6f};
    host::launch("group_norm", dim3(rows, groups), 256, 0, [&] { FOR_TYPE(T, group_norm)(args); });
    std::vector<double> want(out.size);
    for (int r = 0; r < rows; r++)
      for (int g = 0; g < groups; g++) {
        size_t at = size_t(r) * stride + g * n, to = (size_t(r) * groups + g) * n;
        double squares = 0;
        for (int i = 0; i < n; i++) squares += value(x, at + i) * value(x, at + i);
        for (int i = 0; i < n; i++) want[to + i] = value(x, at + i) / std::sqrt(squares / n + 1e-6f) * weight[i];
      }
    check::close(out.data, want);
    if (groups == 1) codes.compare(out);
    return check::bytes(out);
  });
}

// Rows with a mean, then what is added to rows by position; the position of the last one is not in the table.
template <class T>
void layer_norm(int rows, int n) {
  check::every_order(named("layer_norm", check::type_name<T>(), {rows, n}), [&] {
    Random random(rows + 3 * n);
    auto x = random.numbers<float>(size_t(rows) * n), weight = random.numbers<float>(n), bias = random.numbers<float>(n);
    for (float &number : x) number += 3;
    Buffer<float> xs(x), weights(weight), biases(bias);
    Buffer<T> out(x.size());
    LayerNormArgs args = {xs.data, weights.data, biases.data, out.data, n, 1e-5f};
    host::launch("layer_norm", rows, 256, 0, [&] { FOR_TYPE(T, layer_norm)(args); });
    std::vector<double> want(x.size());
    for (int r = 0; r < rows; r++) {
      const float *row = &x[size_t(r) * n];
      double mean = 0, squares = 0;
      for (int i = 0; i < n; i++) mean += row[i] / double(n);
      for (int i = 0; i < n; i++) squares += (row[i] - mean) * (row[i] - mean);
      for (int i = 0; i < n; i++)
        want[size_t(r) * n + i] = (row[i] - mean) / std::sqrt(squares / n + 1e-5f) * weight[i] + bias[i];
    }
    check::close(out.data, want, 1e-5);
    return check::bytes(out);
  });
}

inline void positions(int rows, int n) {
  check::every_order("add_positions", [&] {
    Random random(rows + n);
    auto x = random.numbers<float>(size_t(rows) * n), table = random.numbers<float>(size_t(rows) * n);
    auto places = random.distinct(rows, rows);
    places.back() = rows;
    Buffer<float> xs(x), tables(table);
    Buffer<uint32_t> place_buffer(places);
    AddPositionsArgs args = {xs.data, tables.data, place_buffer.data, n, uint32_t(rows)};
    LAUNCH(add_positions, rows, 256, 0, args);
    std::vector<double> want(x.begin(), x.end());
    for (int r = 0; r + 1 < rows; r++)
      for (int i = 0; i < n; i++) want[size_t(r) * n + i] = x[size_t(r) * n + i] + table[places[r] * size_t(n) + i];
    check::close(xs.data, want, 0);
    return check::bytes(xs);
  });
}

template <class T>
void gelus(int n) {
  for (bool tanh : {false, true}) {
    check::every_order(named("gelu", check::type_name<T>(), {n, tanh}), [&] {
      Random random(n);
      auto x = random.numbers<T>(n, 5);
      Buffer<T> xs(x), out(n);
      GeluArgs args = {xs.data, out.data, size_t(n), tanh};
      host::launch("gelu", (n + 255) / 256, 256, 0, [&] { FOR_TYPE(T, gelu)(args); });
      std::vector<double> want(n);
      for (int i = 0; i < n; i++) {
        double v = value(x, i), inner = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        want[i] = 0.5 * v * (1 + (tanh ? std::tanh(inner) : std::erf(v / std::sqrt(2.0))));
      }
      check::close(out.data, want);
      return check::bytes(out);
    });
  }
}

// The norm of the columns from `from` of rows that go on to `width`.
template <class T>
void part_norm(int rows, int n, int from, int width) {
  check::every_order(named("part_norm", check::type_name<T>(), {rows, n, from, width}), [&] {
    Random random(rows * 7 + n);
    auto x = random.numbers<T>(size_t(rows) * width);
    auto weight = random.numbers<float>(n);
    Buffer<T> xs(x), out(size_t(rows) * n);
    Buffer<float> weights(weight), squares(size_t(rows) * 2);
    SquareSumArgs sums = {xs.data, squares.data + 1, width, width, 2};
    host::launch("square_sum", rows, 256, 0, [&] { FOR_TYPE(T, square_sum)(sums); });
    SquareSumArgs none = {xs.data, squares.data, 0, width, 2};
    host::launch("square_sum", rows, 256, 0, [&] { FOR_TYPE(T, square_sum)(none); });
    NormCodes<T> codes(rows, n, false);
    PartNormArgs args = {xs.data + from, squares.data + 1, weights.data, out.data, codes.to(), n, width, 2, width, 1e-6f};
    host::launch("part_norm", rows, 256, 0, [&] { FOR_TYPE(T, part_norm)(args); });
    std::vector<double> want(out.size), want_sums(squares.size);
    for (int r = 0; r < rows; r++) {
      size_t at = size_t(r) * width;
      for (int i = 0; i < width; i++) want_sums[2 * r + 1] += value(x, at + i) * value(x, at + i);
      for (int i = 0; i < n; i++)
        want[size_t(r) * n + i] = value(x, at + from + i) / std::sqrt(want_sums[2 * r + 1] / width + 1e-6f) * weight[i];
    }
    check::close(squares.data, want_sums, 1e-5);
    check::close(out.data, want);
    codes.compare(out);
    return check::bytes(squares) + check::bytes(out);
  });
}

template <class T>
void gate_mul(int rows, int n, bool gelu) {
  check::every_order(named(gelu ? "gelu_mul" : "silu_mul", check::type_name<T>(), {rows, n}), [&] {
    Random random(rows + n);
    auto x = random.numbers<T>(size_t(rows) * 2 * n, 20);
    Buffer<T> xs(x), out(size_t(rows) * n);
    SiluMulArgs args = {xs.data, xs.data + n, out.data, nullptr, nullptr, n, 2 * n};
    host::launch("gate_mul", dim3(rows, (n + 255) / 256), 256, 0, [&] {
      if (gelu) FOR_TYPE(T, gelu_mul)(args);
      else FOR_TYPE(T, silu_mul)(args);
    });
    std::vector<double> want(out.size);
    for (size_t i = 0; i < want.size(); i++) {
      double gate = value(x, i / n * 2 * n + i % n), up = value(x, i / n * 2 * n + n + i % n);
      double u = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
      want[i] = (gelu ? 0.5 * gate * (1 + std::tanh(u)) : gate / (1 + std::exp(-gate))) * up;
    }
    check::close(out.data, want);
    return check::bytes(out);
  });
}

inline void narrow(int n) {
  check::every_order(named("narrow", "bf16", {n}), [&] {
    auto x = Random(n).numbers<float>(n, 3);
    Buffer<float> xs(x);
    Buffer<bf16> out(n);
    NarrowArgs args = {xs.data, out.data, size_t(n)};
    LAUNCH(narrow_bf16, (n + 255) / 256, 256, 0, args);
    for (int i = 0; i < n; i++)
      if (out[i].bits != to_bf16(x[i]).bits) check::fail("not the nearest bf16");
    return check::bytes(out);
  });
}

// Some rows have no route, and some routes no expert of these.
template <class T>
void clamped(int rows, int n, bool with_routes) {
  check::every_order(named("clamped", check::type_name<T>(), {rows, n, with_routes}), [&] {
    const int experts = 3;
    const float alpha = 1.7f, limit = 3;
    Random random(rows + n);
    int stride = n + 3;
    auto gate = random.numbers<T>(size_t(rows) * stride, 5), up = random.numbers<T>(gate.size(), 5);
    auto gate_bias = random.numbers<float>(experts * n), up_bias = random.numbers<float>(experts * n);
    std::vector<uint32_t> routes(rows), ids(rows);
    for (int i = 0; i < rows; i++) routes[i] = rows - 1 - i, ids[i] = i % 4 == 3 ? 0xfffffffe : random.below(experts);
    if (rows > 2) routes[2] = NONE;
    Buffer<T> gates(gate), ups(up), out(std::vector<T>(size_t(rows) * n, from_float<T>(9))), parts(std::vector<T>(gate.begin(), gate.begin() + rows * n));
    Buffer<uint32_t> route_buffer(routes), id_buffer(ids);
    Buffer<float> of_gate(gate_bias), of_up(up_bias);
    const uint32_t *route = with_routes ? route_buffer.data : nullptr;
    // A block has two rows.
    Buffer<uint32_t> used(std::vector<uint32_t>{uint32_t(rows)});
    ClampedMulArgs args = {gates.data, ups.data, out.data, route, with_routes ? used.data : nullptr, id_buffer.data,
                           of_gate.data, of_up.data, n, stride, experts, alpha, limit};
    ExpertBiasArgs bias_args = {parts.data, nullptr, nullptr, id_buffer.data, of_gate.data, n, experts};
    dim3 grid(rows, (n + 255) / 256);
    host::launch("clamped_mul", dim3(with_routes ? (rows + 1) / 2 : rows, grid.y), 256, 0, [&] { FOR_TYPE(T, clamped_mul)(args); });
    host::launch("add_expert_bias", grid, 256, 0, [&] { FOR_TYPE(T, add_expert_bias)(bias_args); });
    std::vector<double> want(out.size, 9), want_parts(out.size);
    for (size_t i = 0; i < want.size(); i++) {
      uint32_t r = with_routes ? routes[i / n] : i / n, expert = r == NONE ? NONE : ids[r], own = ids[i / n];
      want_parts[i] = value(gate, i) + (own < experts ? gate_bias[own * n + i % n] : 0);
      if (expert >= experts) continue;
      size_t at = i / n * stride + i % n;
      double g = std::min<double>(value(gate, at) + gate_bias[expert * n + i % n], limit);
      double u = std::clamp<double>(value(up, at) + up_bias[expert * n + i % n], -limit, limit);
      want[i] = g / (1 + std::exp(-alpha * g)) * (u + 1);
    }
    check::close(out.data, want);
    check::close(parts.data, want_parts);
    return check::bytes(out) + check::bytes(parts);
  });
}

template <class T>
void add_scaled(int n, bool with_y) {
  check::every_order(named("add_scaled", check::type_name<T>(), {n, with_y}), [&] {
    Random random(n);
    auto x = random.numbers<float>(n);
    auto y = random.numbers<T>(n);
    Buffer<float> xs(x);
    Buffer<T> ys(y);
    AddScaledArgs args = {xs.data, with_y ? ys.data : nullptr, size_t(n), 1.5f, 0.25f};
    host::launch("add_scaled", (n + 255) / 256, 256, 0, [&] { FOR_TYPE(T, add_scaled)(args); });
    std::vector<double> want(n);
    for (int i = 0; i < n; i++) want[i] = 1.5 * x[i] + (with_y ? 0.25 * value(y, i) : 0);
    check::close(xs.data, want, 1e-6);
    return check::bytes(xs);
  });
}

template <class T>
void gather(int rows, int from_rows, int n, int stride) {
  check::every_order(named("gather", check::type_name<T>(), {rows, from_rows, n, stride}), [&] {
    Random random(rows + n);
    auto x = random.numbers<T>(size_t(from_rows) * stride);
    std::vector<uint32_t> index(rows);
    for (auto &i : index) i = random.below(from_rows);
    Buffer<T> xs(x), out(size_t(rows) * n);
    Buffer<uint32_t> indices(index);
    GatherArgs args = {xs.data, indices.data, nullptr, out.data, n, stride, 1};
    host::launch("gather", dim3(rows, (n + 255) / 256), 256, 0, [&] { FOR_TYPE(T, gather)(args); });
    std::vector<double> want(out.size);
    for (size_t i = 0; i < want.size(); i++) want[i] = value(x, size_t(index[i / n]) * stride + i % n);
    check::close(out.data, want, 0);
    return check::bytes(out);
  });
}

struct Rope {
  int rows, heads, dim, offset, dims, heads_of_block;
  bool interleaved;
};

template <class T>
void rope(const Rope &shape) {
  const auto [rows, heads, dim, offset, dims, heads_of_block, interleaved] = shape;
  check::every_order(named("rope", check::type_name<T>(), {rows, heads, dim, offset, dims, interleaved}), [&] {
    constexpr int POSITIONS = 50;
    Random random(rows + dims);
    // Rows are a part of a matrix, as in the result of a joined product.
    int width = heads * dim, stride = width + 3, half = dims / 2;
    auto x = random.numbers<T>(size_t(rows) * stride);
    auto angles = random.numbers<float>(POSITIONS * dims);
    std::vector<uint32_t> positions(rows);
    for (auto &p : positions) p = random.below(POSITIONS);
    Buffer<T> xs(x);
    Buffer<float> angle_buffer(angles);
    Buffer<uint32_t> position_buffer(positions);
    // A second matrix has the first head alone.
    Buffer<T> ys(x);
    auto of = [&](T *x, int heads) {
      return RopeHeads{x, angle_buffer.data, dims, interleaved, heads, dim, offset, stride, heads_of_block};
    };
    RopeArgs args = {{of(xs.data, heads), of(ys.data, 1)}, position_buffer.data,
                     ceil_div(heads, heads_of_block)};
    dim3 grid(rows, unsigned(args.blocks) + 1);
    host::launch("rope", grid, 128, 0, [&] { FOR_TYPE(T, rope)(args); });
    for (size_t i = 0; i < x.size(); i++) {
      float want = int(i % stride) < dim ? to_float(xs[i]) : to_float(x[i]);
      if (to_float(ys[i]) != want) check::fail("the second matrix");
    }
    std::vector<double> want(x.size());
    for (size_t i = 0; i < x.size(); i++) {
      int row = i / stride, column = i % stride, j = column % dim - offset;
      if (column >= width || j < 0 || j >= dims) {
        want[i] = value(x, i);
        continue;
      }
      int pair = j % half;
      size_t at = i - j;
      double first = value(x, at + (interleaved ? 2 * pair : pair));
      double second = value(x, at + (interleaved ? 2 * pair + 1 : pair + half));
      double cosine = angles[positions[row] * dims + pair], sine = angles[positions[row] * dims + half + pair];
      want[i] = j < half ? first * cosine - second * sine : second * cosine + first * sine;
    }
    check::close(xs.data, want);
    return check::bytes(xs);
  });
}

template <class T>
void cache_write(int rows, int first, int second) {
  check::every_order(named("cache_write", check::type_name<T>(), {rows, first, second}), [&] {
    constexpr int PLACES = 40;
    Random random(rows + first);
    int stride = first + second + 3;
    auto x = random.numbers<T>(size_t(rows) * stride);
    std::vector<uint32_t> places = random.distinct(rows, PLACES);
    if (rows > 1) places[0] = NONE;
    Buffer<T> xs(x), caches[2] = {Buffer<T>(size_t(PLACES) * first), Buffer<T>(size_t(PLACES) * second)};
    Buffer<uint32_t> place_buffer(places);
    CacheWriteArgs args = {{xs.data, xs.data + first}, {caches[0].data, caches[1].data}, place_buffer.data,
                           {first, second},            {stride, stride}};
    host::launch("cache_write", dim3(rows, 2), 128, 0, [&] { FOR_TYPE(T, cache_write)(args); });
    std::vector<bool> written(PLACES);
    for (int r = 0; r < rows; r++) {
      if (places[r] == NONE) continue;
      written[places[r]] = true;
      for (int part = 0; part < 2; part++) {
        int width = part ? second : first;
        std::vector<double> want(width);
        for (int i = 0; i < width; i++) want[i] = value(x, size_t(r) * stride + (part ? first : 0) + i);
        check::close(caches[part].data + size_t(places[r]) * width, want, 0);
      }
    }
    for (int p = 0; p < PLACES; p++)
      if (!written[p] && first && to_float(caches[0][size_t(p) * first]) == 0) check::fail("wrote another place");
    return check::bytes(caches[0]) + check::bytes(caches[1]);
  });
}

template <class T>
void test_type() {
  for (int hidden : {1, 7, 64, 300}) embed<T>(5, 11, hidden);
  for (int n : {1, 33, 256, 1300, 9001})
    for (bool with_y : {false, true}) add_norm<T, T>(3, n, with_y), add_norm<float, T>(3, n, with_y);
  group_norm<T>(2, 3, 64, 200);
  group_norm<T>(3, 2, 5, 10);
  group_norm<T>(1, 1, 300, 300);
  layer_norm<T>(3, 64);
  layer_norm<T>(2, 700);
  layer_norm<T>(1, 1);
  for (int n : {1, 300}) gelus<T>(n);
  part_norm<T>(3, 64, 64, 200);
  part_norm<T>(2, 5, 0, 5);
  part_norm<T>(1, 300, 20, 777);
  for (int n : {1, 70, 513}) {
    gate_mul<T>(3, n, false);
    gate_mul<T>(3, n, true);
    for (bool with_routes : {false, true}) clamped<T>(6, n, with_routes);
  }
  for (bool with_y : {false, true}) add_scaled<T>(300, with_y);
  gather<T>(4, 9, 37, 37);
  gather<T>(3, 3, 260, 300);
  rope<T>({4, 3, 16, 0, 16, 32, false});    // GQA
  rope<T>({3, 40, 24, 16, 8, 64, true});    // MLA: whole heads of several blocks
  rope<T>({2, 5, 20, 4, 10, 2, false});     // Partly rotated
  rope<T>({1, 2, 512, 0, 512, 1, true});
  rope<T>({2, 700, 2, 0, 2, 256, false});
  cache_write<T>(4, 32, 16);
  cache_write<T>(3, 8, 40);
  cache_write<T>(1, 512, 1);
}

inline void test() {
  for (int n : {1, 255, 700}) narrow(n), positions(5, n);
  test_type<float>();
  test_type<bf16>();
}

}  // namespace row_tests
