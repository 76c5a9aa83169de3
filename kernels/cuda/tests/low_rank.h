// Low-rank adapters against plain loops: rows of several slots, of none, and of experts by route.
#include "check.h"

namespace low_rank_tests {

using check::Buffer;
using check::Random;
using check::value;

// `experts`: 0 for a module of the batch's rows. `heads`: they go round. Places without an adapter are every third.
template <class T, class Y>
void add(int rows, int k, int n, int experts, bool of_batch, bool heads = false) {
  std::string name = "low_rank_" + std::string(check::type_name<T>()) + "_" + check::type_name<Y>();
  for (int size : {rows, k, n, experts, int(of_batch), int(heads)}) name += " " + std::to_string(size);
  check::every_order(name, [&] {
    constexpr int SLOTS = 3, MOST = 11;
    Random random(rows * 31 + k);
    int per_row = heads ? experts : experts ? 2 : 1, routes = rows * per_row, places = experts ? SLOTS * experts : SLOTS;
    std::vector<uint32_t> slots(rows), route(routes), expert(routes);
    for (auto &slot : slots) slot = random.below(SLOTS);
    if (rows > 1) slots[1] = NONE;
    route = random.distinct(routes, routes);
    if (routes > 2) route[2] = NONE;
    for (auto &e : expert) e = random.below(std::max(experts, 1));
    if (routes > 4) expert[4] = NONE;
    for (int r = 0; heads && r < routes; r++) route[r] = r, expert[r] = r % experts;
    std::vector<std::unique_ptr<Buffer<T>>> numbers;
    std::vector<std::vector<T>> downs(places), ups(places);
    Buffer<LowRankEntry> table{std::vector<LowRankEntry>(places)};
    for (int place = 0; place < places; place++) {
      int rank = place % 3 == 2 ? 0 : 1 + random.below(MOST);
      downs[place] = random.numbers<T>(size_t(rank) * k), ups[place] = random.numbers<T>(size_t(n) * rank);
      numbers.push_back(std::make_unique<Buffer<T>>(downs[place]));
      numbers.push_back(std::make_unique<Buffer<T>>(ups[place]));
      table[place] = {numbers[2 * place]->data, numbers[2 * place + 1]->data, uint64_t(rank)};
    }
    int x_rows = of_batch ? rows : routes, x_stride = k + 3;
    auto x = random.numbers<T>(size_t(x_rows) * x_stride);
    auto y = random.numbers<Y>(size_t(routes) * n);
    Buffer<T> xs(x);
    Buffer<Y> ys(y);
    Buffer<float> t(size_t(routes) * MOST);
    Buffer<uint32_t> slot_buffer(slots), route_buffer(route), expert_buffer(expert);
    LowRankArgs args = {xs.data,
                        ys.data,
                        t.data,
                        table.data,
                        slot_buffer.data,
                        experts && !heads ? route_buffer.data : nullptr,
                        experts && !heads ? expert_buffer.data : nullptr,
                        k,
                        n,
                        x_stride,
                        n,
                        MOST,
                        per_row,
                        experts,
                        of_batch};
    host::launch("low_rank_down", dim3(routes, ceil_div(MOST, 8)), 256, 0, [&] {
      if (sizeof(T) == 4) low_rank_down_f32(args);
      else low_rank_down_bf16(args);
    });
    host::launch("low_rank_up", dim3(routes, ceil_div(n, 256)), 256, 0, [&] {
      if (sizeof(T) == 4) low_rank_up_f32(args);
      else if (sizeof(Y) == 4) low_rank_up_bf16_f32(args);
      else low_rank_up_bf16(args);
    });
    std::vector<double> want(y.size());
    for (int r = 0; r < routes; r++) {
      uint32_t which = experts ? route[r] : r, slot = which == NONE ? NONE : slots[which / per_row];
      bool none = slot == NONE || (experts && expert[which] == NONE);
      int place = none ? 0 : experts ? slot * experts + expert[which] : slot;
      int rank = none ? 0 : int(table[place].rank);
      size_t from = size_t(of_batch && !none ? which / per_row : r) * x_stride;
      for (int c = 0; c < n; c++) {
        double sum = value(y, size_t(r) * n + c);
        for (int j = 0; j < rank; j++) {
          double middle = 0;
          for (int i = 0; i < k; i++) middle += value(x, from + i) * value(downs[place], size_t(j) * k + i);
          sum += middle * value(ups[place], size_t(c) * rank + j);
        }
        want[size_t(r) * n + c] = sum;
      }
    }
    check::close(ys.data, want);
    return check::bytes(ys);
  });
}

template <class T, class Y>
void test_types() {
  for (int k : {1, 33, 260}) add<T, Y>(5, k, 70, 0, true);
  add<T, Y>(1, 64, 300, 0, true);
  for (bool of_batch : {false, true}) add<T, Y>(6, 40, 33, 4, of_batch);
  add<T, Y>(5, 24, 36, 3, false, true);
}

inline void test() {
  test_types<float, float>();
  test_types<bf16, bf16>();
  test_types<bf16, float>();
}

}  // namespace low_rank_tests
