// route, moe_count, moe_align and moe_combine against plain loops.
#include "check.h"

namespace expert_tests {

using check::Buffer;
using check::Random;
using check::value;

struct Route {
  int rows, experts, top_k, groups, top_groups;
  bool sigmoid, normalize, with_bias;
  // 0: random scores. 1: all equal. 2: few different values. 3: with NaN.
  int kind;
};

// Larger first, NaN last; of equal values the lower index.
inline std::vector<int> best(const std::vector<float> &values, int k) {
  std::vector<int> order(values.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    if (std::isnan(values[a]) || std::isnan(values[b])) return !std::isnan(values[a]) && std::isnan(values[b]);
    return values[a] > values[b];
  });
  order.resize(k);
  return order;
}

inline void route(const Route &s) {
  std::string name = "route";
  for (int n : {s.rows, s.experts, s.top_k, s.groups, int(s.sigmoid), int(s.with_bias), s.kind})
    name += " " + std::to_string(n);
  check::every_order(name, [&] {
    Random random(s.experts + s.kind);
    auto scores = random.numbers<float>(size_t(s.rows) * s.experts, 4), bias = random.numbers<float>(s.experts, 0.1f);
    for (float &x : scores) {
      if (s.kind == 1) x = 0.5f;
      if (s.kind == 2) x = std::floor(x);
      if (s.kind == 3 && random.below(5) == 0) x = NAN;
    }
    Buffer<float> score_buffer(scores), biases(bias), weights(size_t(s.rows) * s.top_k);
    Buffer<uint32_t> ids(size_t(s.rows) * s.top_k);
    RouteArgs args = {score_buffer.data,
                      s.with_bias ? biases.data : nullptr,
                      ids.data,
                      weights.data,
                      s.experts,
                      s.top_k,
                      s.groups,
                      s.top_groups,
                      s.sigmoid,
                      s.normalize,
                      2.5f};
    LAUNCH(route_f32, s.rows, 32, (2 * s.experts + s.groups) * 4 + std::max(s.experts, s.groups), args);
    for (int r = 0; r < s.rows; r++) {
      const float *row = &scores[size_t(r) * s.experts];
      std::vector<float> probabilities(s.experts), choice;
      float largest = -INFINITY;
      for (int i = 0; i < s.experts; i++) largest = std::fmax(largest, row[i]);
      double sum = 0;
      for (int i = 0; i < s.experts; i++) {
        probabilities[i] = s.sigmoid ? 1 / (1 + std::exp(-row[i])) : std::exp(row[i] - largest);
        sum += probabilities[i];
      }
      if (!s.sigmoid)
        for (float &p : probabilities) p /= sum;
      choice = probabilities;
      if (s.with_bias)
        for (int i = 0; i < s.experts; i++) choice[i] += bias[i];
      if (s.groups > 1 && s.top_groups < s.groups) {
        int size = s.experts / s.groups;
        std::vector<float> groups(s.groups, 0);
        for (int g = 0; g < s.groups; g++) {
          std::vector<float> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
          for (int i : best(group, std::min(2, size))) groups[g] += group[i];
        }
        auto chosen = best(groups, s.top_groups);
        for (int i = 0; i < s.experts; i++)
          if (std::find(chosen.begin(), chosen.end(), i / size) == chosen.end()) choice[i] = -INFINITY;
      }
      auto wanted = best(choice, s.top_k);
      double total = 0;
      for (int i : wanted) total += probabilities[i];
      std::vector<double> want(s.top_k);
      for (int i = 0; i < s.top_k; i++) {
        check::equal(ids[size_t(r) * s.top_k + i], wanted[i], "expert");
        want[i] = probabilities[wanted[i]] / (s.normalize ? total + 1e-20 : 1) * 2.5;
      }
      if (s.kind != 3) check::close(weights.data + size_t(r) * s.top_k, want);
    }
    return check::bytes(ids) + check::bytes(weights);
  });
}

// Tokens of rows; some are NONE.
inline std::vector<uint32_t> tokens(Random &random, int rows, bool some) {
  std::vector<uint32_t> all(rows);
  for (auto &s : all) s = some && random.below(3) == 0 ? NONE : random.below(9);
  return all;
}

// Experts `held` of `experts` in random order; each row has distinct ones.
inline void align(int rows, int top_k, int experts, int held) {
  check::every_order("moe_align", [&] {
    Random random(rows + experts);
    int routes = rows * top_k;
    std::vector<uint32_t> ids;
    for (int r = 0; r < rows; r++)
      for (uint32_t id : random.distinct(top_k, experts)) ids.push_back(id);
    auto held_ids = random.distinct(held, experts);
    auto of = tokens(random, rows, true);
    Buffer<uint32_t> id_buffer(ids), held_buffer(held_ids), counts(held), starts(held + 1), order(routes);
    Buffer<uint32_t> of_rows(of);
    uint32_t *given = rows % 2 ? of_rows.data : nullptr;
    MoeAlignArgs args = {id_buffer.data, held_buffer.data, given,  counts.data, starts.data,
                         order.data,     routes,           held,   top_k};
    if (held) LAUNCH(moe_count, held, 256, 0, args);
    LAUNCH(moe_align, held + 1, 256, 0, args);
    std::vector<uint32_t> want;
    for (int e = 0; e < held; e++) {
      check::equal(starts[e], want.size(), "start");
      for (int r = 0; r < routes; r++)
        if (ids[r] == held_ids[e] && !(given && of[r / top_k] == NONE)) want.push_back(r);
    }
    check::equal(starts[held], want.size(), "end");
    for (size_t i = 0; i < want.size(); i++) check::equal(order[i], want[i], "route");
    for (int i = want.size(); i < routes; i++) check::equal(order[i], NONE, "route that no expert has");
    // Places from these lists, and at once.
    int tile = 1 + rows % 5, groups = held + 3, room = routes + held * (tile - 1);
    struct Places {
      Buffer<uint32_t> at, ends, begins, of_routes;
      Places(int room, int groups, int routes) : at(room), ends(groups), begins(groups + 1), of_routes(routes) {}
    };
    Places of_lists(room, groups, routes), at_once(room, groups, routes);
    auto to = [&](Places &p) { return MoePlaces{p.at.data, p.ends.data, p.begins.data, p.of_routes.data, held, groups, tile, room}; };
    MoePlaceArgs place_args = {counts.data, starts.data, order.data, to(of_lists)};
    LAUNCH(moe_place, held + 1, 256, 0, place_args);
    MoePlaceFewArgs few_args = {id_buffer.data, held_buffer.data, given, to(at_once), routes, top_k};
    LAUNCH(moe_place_few, 1, 256, 0, few_args);
    auto bytes = [](Places &p) { return check::bytes(p.at) + check::bytes(p.ends) + check::bytes(p.begins) + check::bytes(p.of_routes); };
    if (bytes(of_lists) != bytes(at_once)) check::fail("other places than from lists");
    return check::bytes(starts) + check::bytes(order) + bytes(at_once);
  });
}

template <class T>
void combine(int rows, int top_k, int experts, int n, bool with_shared, bool all_held) {
  check::every_order("moe_combine", [&] {
    Random random(rows + n);
    std::vector<uint32_t> ids, held(experts);
    for (int r = 0; r < rows; r++)
      for (uint32_t id : random.distinct(top_k, experts)) ids.push_back(id);
    for (auto &h : held) h = random.below(2);
    auto parts = random.numbers<T>(ids.size() * n), shared = random.numbers<T>(size_t(rows) * n);
    auto places = random.distinct(ids.size(), ids.size());
    auto weights = random.numbers<float>(ids.size());
    auto of = tokens(random, rows, all_held);
    // The parts of experts that are not held are never written.
    if (!all_held)
      for (size_t i = 0; i < parts.size(); i++)
        if (!held[ids[i / n]]) parts[i] = from_float<T>(NAN);
    auto by_place = parts;
    for (size_t i = 0; i < parts.size(); i++) by_place[places[i / n] * n + i % n] = parts[i];
    Buffer<T> part_buffer(all_held ? by_place : parts), shared_buffer(shared);
    Buffer<uint32_t> id_buffer(ids), held_buffer(held), of_rows(of), place_buffer(places);
    Buffer<float> weight_buffer(weights), out(size_t(rows) * n);
    MoeCombineArgs args = {part_buffer.data,
                           with_shared ? shared_buffer.data : nullptr,
                           id_buffer.data,
                           all_held ? nullptr : held_buffer.data,
                           of_rows.data,
                           all_held ? place_buffer.data : nullptr,
                           weight_buffer.data,
                           out.data,
                           n,
                           top_k};
    auto kernel = sizeof(T) == 4 ? moe_combine_f32 : moe_combine_bf16;
    LAUNCH(kernel, dim3(rows, (n + 255) / 256), 256, 0, args);
    std::vector<double> want(out.size, 0);
    for (size_t i = 0; i < ids.size() * n; i++)
      if (all_held || held[ids[i / n]]) want[i / n / top_k * n + i % n] += double(weights[i / n]) * value(parts, i);
    if (with_shared)
      for (size_t i = 0; i < want.size(); i++) want[i] += value(shared, i);
    for (size_t i = 0; i < want.size(); i++)
      if (of[i / n] == NONE) want[i] = 0;
    check::close(out.data, want);
    return check::bytes(out);
  });
}

// The same experts in another order of choice give the same bits.
inline void combine_in_order_of_experts() {
  check::test = "moe_combine, order of routes";
  constexpr int TOP_K = 6, N = 40;
  Random random(5);
  auto ids = random.distinct(TOP_K, 20);
  auto parts = random.numbers<float>(TOP_K * N), weights = random.numbers<float>(TOP_K);
  std::string first;
  for (int shift = 0; shift < TOP_K; shift++) {
    Buffer<uint32_t> id_buffer(ids);
    Buffer<float> part_buffer(parts), weight_buffer(weights), out(N);
    MoeCombineArgs args = {};
    args.parts = part_buffer.data, args.ids = id_buffer.data, args.weights = weight_buffer.data, args.out = out.data;
    args.n = N, args.top_k = TOP_K;
    LAUNCH(moe_combine_f32, dim3(1, 1), 256, 0, args);
    if (shift == 0) first = check::bytes(out);
    if (check::bytes(out) != first) check::fail("the sum depends on the order of the routes");
    std::rotate(ids.begin(), ids.begin() + 1, ids.end());
    std::rotate(weights.begin(), weights.begin() + 1, weights.end());
    std::rotate(parts.begin(), parts.begin() + N, parts.end());
  }
}

inline void test() {
  for (int kind : {0, 1, 2, 3})
    for (bool sigmoid : {false, true}) {
      route({3, 8, 2, 1, 1, sigmoid, true, false, kind});
      route({2, 64, 8, 1, 1, sigmoid, false, true, kind});
      route({2, 256, 8, 8, 4, sigmoid, true, true, kind});
      route({2, 384, 8, 1, 1, sigmoid, true, true, kind});
      route({1, 6, 6, 3, 1, sigmoid, true, true, kind});  // More than the eligible experts.
      route({1, 33, 1, 33, 2, sigmoid, true, false, kind});
      route({1, 1, 1, 1, 1, sigmoid, true, false, kind});
    }
  align(1, 1, 1, 1);
  align(5, 2, 8, 8);
  align(100, 4, 16, 5);
  align(300, 2, 300, 270);
  align(7, 3, 12, 0);
  for (bool with_shared : {false, true})
    for (bool all_held : {false, true}) {
      combine<float>(3, 4, 9, 300, with_shared, all_held);
      combine<bf16>(2, 8, 64, 65, with_shared, all_held);
      combine<bf16>(1, 1, 1, 1, with_shared, all_held);
    }
  combine_in_order_of_experts();
}

}  // namespace expert_tests
