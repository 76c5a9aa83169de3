// linear, for plain, batched and grouped products, against plain loops; and that a row does not depend on the others.
#include "check.h"

namespace product_tests {

using check::Buffer;
using check::Random;
using check::value;

template <class X, class W, class Out>
void launch_linear(dim3 grid, const LinearArgs &args) {
  if constexpr (sizeof(X) < sizeof(W))
    host::launch("linear_mixed", args.rows > linear_mixed_of::FEW ? grid : dim3((args.n + 7) / 8, (args.rows + 15) / 16, grid.z), 256, 0, [&] { linear_mixed(args); });
  else if constexpr (sizeof(X) == 4)
    host::launch("linear_f32", grid, 256, 0, [&] { linear_f32(args); });
  else if constexpr (sizeof(Out) == 4)
    host::launch("linear_bf16_f32", grid, 128, 0, [&] { linear_bf16_f32(args); });
  else
    host::launch("linear_bf16", grid, 128, 0, [&] { linear_bf16(args); });
}

inline std::string named(const char *kernel, std::initializer_list<int> shape) {
  std::string name = kernel;
  for (int n : shape) name += " " + std::to_string(n);
  return name;
}

// The product of one row.
template <class X, class W>
double dot(const std::vector<X> &x, size_t x_at, const std::vector<W> &w, size_t w_at, int k) {
  double sum = 0;
  for (int i = 0; i < k; i++) sum += value(x, x_at + i) * value(w, w_at + i);
  return sum;
}

template <class X, class W, class Out>
void plain(int rows, int n, int k, int batch, bool with_bias, int pad) {
  std::string name = named("linear", {int(sizeof(X)), int(sizeof(W)), int(sizeof(Out)), rows, n, k, batch, pad});
  check::every_order(name + (with_bias ? " with bias" : ""), [&] {
    Random random(rows * 7 + n * 3 + k);
    int x_stride = k + pad, out_stride = n + pad;
    auto x = random.numbers<X>(size_t(batch) * rows * x_stride);
    auto w = random.numbers<W>(size_t(batch) * n * k);
    auto bias = random.numbers<float>(n);
    Buffer<X> xs(x);
    Buffer<W> ws(w);
    Buffer<float> biases(bias);
    Buffer<Out> out(size_t(batch) * rows * out_stride);
    LinearArgs args = {};
    args.x = xs.data, args.w = ws.data, args.bias = with_bias ? biases.data : nullptr, args.out = out.data;
    args.x_batch = size_t(rows) * x_stride, args.w_batch = size_t(n) * k, args.out_batch = size_t(rows) * out_stride;
    args.rows = rows, args.n = n, args.k = k, args.x_stride = x_stride, args.out_stride = out_stride;
    launch_linear<X, W, Out>(dim3((n + 63) / 64, (rows + 63) / 64, batch), args);
    for (int b = 0; b < batch; b++)
      for (int r = 0; r < rows; r++) {
        size_t row = size_t(b) * rows + r;
        std::vector<double> want(n);
        for (int c = 0; c < n; c++)
          want[c] = dot(x, row * x_stride, w, (size_t(b) * n + c) * k, k) + (with_bias ? bias[c] : 0);
        check::close(out.data + row * out_stride, want);
      }
    return check::bytes(out);
  });
}

// Row 3 of 70 rows has the bits that it has alone.
template <class X, class W, class Out>
void row_alone(int n, int k) {
  std::string name = named("linear of one row", {int(sizeof(X)), int(sizeof(W)), int(sizeof(Out)), n, k});
  check::test = name.c_str();
  constexpr int ROWS = 70, ROW = 67;
  Random random(n + k);
  Buffer<X> x(random.numbers<X>(size_t(ROWS) * k));
  Buffer<W> w(random.numbers<W>(size_t(n) * k));
  Buffer<Out> together(size_t(ROWS) * n), alone(n);
  LinearArgs args = {};
  args.x = x.data, args.w = w.data, args.out = together.data;
  args.rows = ROWS, args.n = n, args.k = k, args.x_stride = k, args.out_stride = n;
  launch_linear<X, W, Out>(dim3((n + 63) / 64, 2), args);
  args.x = x.data + size_t(ROW) * k, args.out = alone.data, args.rows = 1;
  launch_linear<X, W, Out>(dim3((n + 63) / 64, 1), args);
  if (memcmp(alone.data, together.data + size_t(ROW) * n, n * sizeof(Out)))
    check::fail("the row depends on the others");
}

// Experts: each route's row times the weight of its expert's slot.
template <class X, class W, class Out>
void grouped(int rows, int top_k, int experts, int n, int k) {
  std::string name = named("linear of experts", {int(sizeof(X)), int(sizeof(W)), int(sizeof(Out)), rows, top_k, n, k});
  check::every_order(name + " " + std::to_string(experts), [&] {
    Random random(rows + experts + n);
    int routes = rows * top_k, slots = experts + 2;
    auto x = random.numbers<X>(size_t(rows) * k);
    auto w = random.numbers<W>(size_t(slots) * n * k);
    auto slot = random.distinct(experts, slots);
    // Expert 0 has no routes if there are others; the last route goes to none.
    std::vector<uint32_t> order, starts = {0};
    std::vector<int> expert_of(routes, -1);
    for (int r = 0; r < routes - 1; r++) expert_of[r] = experts == 1 ? 0 : 1 + random.below(experts - 1);
    for (int e = 0; e < experts; e++) {
      for (int r = 0; r < routes; r++)
        if (expert_of[r] == e) order.push_back(r);
      starts.push_back(order.size());
    }
    order.resize(routes, NONE);
    Buffer<X> xs(x);
    Buffer<W> ws(w);
    Buffer<uint32_t> orders(order), start_buffer(starts), slot_buffer(slot);
    Buffer<Out> out(size_t(routes) * n);
    LinearArgs args = {};
    args.x = xs.data, args.w = ws.data, args.out = out.data;
    args.order = orders.data, args.starts = start_buffer.data, args.weight_slots = slot_buffer.data;
    args.rows = routes, args.n = n, args.k = k, args.x_stride = k, args.out_stride = n, args.routes_per_row = top_k;
    launch_linear<X, W, Out>(dim3((n + 63) / 64, (routes + 63) / 64, experts), args);
    for (int r = 0; r < routes - 1; r++) {
      std::vector<double> want(n);
      for (int c = 0; c < n; c++)
        want[c] = dot(x, size_t(r / top_k) * k, w, (size_t(slot[expert_of[r]]) * n + c) * k, k);
      check::close(out.data + size_t(r) * n, want);
    }
    if (!std::isnan(to_float(out[size_t(routes - 1) * n]))) check::fail("wrote a route that no expert has");
    return check::bytes(out);
  });
}

template <class Out>
void sm90(int rows, int n, int k, bool with_bias) {
  check::every_order(named("linear_sm90", {int(sizeof(Out)), rows, n, k, with_bias}), [&] {
    Random random(rows + n + k);
    auto x = random.numbers<bf16>(size_t(rows) * k), w = random.numbers<bf16>(size_t(n) * k);
    auto bias = random.numbers<float>(n);
    Buffer<bf16> xs(x), ws(w);
    Buffer<float> biases(bias);
    Buffer<Out> out(size_t(rows) * n);
    LinearSm90Args args = {};
    args.x_map = host_tensor_map({xs.data, uint64_t(rows), uint64_t(k), uint64_t(k) * 2, 64});
    args.w_map = host_tensor_map({ws.data, uint64_t(n), uint64_t(k), uint64_t(k) * 2, 64});
    args.bias = with_bias ? biases.data : nullptr, args.out = out.data;
    args.rows = rows, args.n = n, args.k = k, args.out_stride = n;
    auto kernel = sizeof(Out) == 4 ? linear_sm90_f32 : linear_sm90_bf16;
    host::launch("linear_sm90", dim3((n + 127) / 128, (rows + 63) / 64), 160, linear_sm90::SHARED_BYTES,
                 [&] { kernel(args); });
    for (int r = 0; r < rows; r++) {
      std::vector<double> want(n);
      for (int c = 0; c < n; c++) want[c] = dot(x, size_t(r) * k, w, size_t(c) * k, k) + (with_bias ? bias[c] : 0);
      check::close(out.data + size_t(r) * n, want);
    }
    return check::bytes(out);
  });
}

template <class X, class W, class Out>
void test_types() {
  // Edges of tiles, rows that are not aligned, one number, and no inputs.
  int shapes[][3] = {{1, 1, 1}, {1, 64, 64}, {3, 65, 40}, {64, 64, 32}, {65, 70, 33}, {2, 130, 200}, {5, 8, 0}};
  for (auto &[rows, n, k] : shapes) plain<X, W, Out>(rows, n, k, 1, rows % 2 == 1, 0);
  plain<X, W, Out>(3, 10, 48, 1, false, 8);
  plain<X, W, Out>(3, 10, 48, 1, true, 3);
  plain<X, W, Out>(4, 24, 16, 3, false, 0);
  row_alone<X, W, Out>(66, 96);
  if constexpr (sizeof(X) < sizeof(W)) {
    plain<X, W, Out>(70, 48, 400, 1, false, 0);
    plain<X, W, Out>(linear_mixed_of::FEW + 3, 9, 40, 1, false, 0);
    return;
  }
  grouped<X, W, Out>(5, 2, 4, 40, 24);
  grouped<X, W, Out>(70, 1, 1, 16, 8);
  grouped<X, W, Out>(9, 3, 2, 65, 17);
}

inline void test() {
  test_types<float, float, float>();
  test_types<bf16, float, float>();
  test_types<bf16, bf16, bf16>();
  test_types<bf16, bf16, float>();
  sm90<float>(1, 8, 8, true);
  sm90<float>(70, 136, 200, false);
  sm90<bf16>(64, 128, 512, true);
}

}  // namespace product_tests
