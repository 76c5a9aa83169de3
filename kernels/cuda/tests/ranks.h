// What is computed from the parts of all ranks, against plain loops. Meetings of ranks are tested over the driver, for
// one kernel cannot wait for another here (kernels/src/cuda/backend/tests/ranks.rs); here the others have come already.
#pragma once
#include "check.h"

namespace rank_tests {

using check::Buffer;
using check::Random;
using check::value;

// Parts of equal size, one for each rank, and the table of their addresses.
template <class T>
struct Parts {
  std::vector<std::vector<T>> numbers;
  std::vector<std::unique_ptr<Buffer<T>>> buffers;
  std::vector<const void *> addresses;
  std::unique_ptr<Buffer<const void *>> table;

  Parts(Random &random, int ranks, size_t n) {
    for (int r = 0; r < ranks; r++) add(random.numbers<T>(n));
    close();
  }
  Parts() {}
  void add(std::vector<T> values) {
    numbers.push_back(values);
    buffers.push_back(std::make_unique<Buffer<T>>(values));
    addresses.push_back(buffers.back()->data);
  }
  void close() { table = std::make_unique<Buffer<const void *>>(addresses); }
  // In rank order, as floats are added.
  float sum(size_t i) const {
    float sum = to_float(numbers[0][i]);
    for (size_t r = 1; r < numbers.size(); r++) sum += to_float(numbers[r][i]);
    return sum;
  }
};

template <class T>
std::string type() {
  return check::type_name<T>();
}

template <class T>
void sum(int ranks, int n) {
  check::every_order("sum_ranks_" + type<T>() + " " + std::to_string(ranks), [&] {
    Random random(ranks * 31 + n);
    Parts<T> parts(random, ranks, n);
    Buffer<float> out(n);
    SumRanksArgs args = {parts.table->data, out.data, size_t(n), ranks};
    auto kernel = sizeof(T) == 4 ? sum_ranks_f32 : sum_ranks_bf16;
    LAUNCH(kernel, (n + 255) / 256, 256, 0, args);
    std::vector<double> want(n);
    for (int i = 0; i < n; i++) want[i] = parts.sum(i);
    check::close(out.data, want, 0);
    return check::bytes(out);
  });
}

// The bits of add_norm after sum_ranks.
template <class Y, class T>
void add_norm(int ranks, int rows, int n) {
  check::every_order("add_norm_ranks " + std::to_string(ranks), [&] {
    Random random(rows + n);
    Parts<Y> parts(random, ranks, size_t(rows) * n);
    auto start = random.numbers<float>(size_t(rows) * n), weight = random.numbers<float>(n);
    std::vector<float> sums(start.size());
    for (size_t i = 0; i < sums.size(); i++) sums[i] = parts.sum(i);
    Buffer<float> x(start), want_x(start), weights(weight), y(sums);
    Buffer<T> out(start.size()), want(start.size());
    AddNormRanksArgs args = {x.data, parts.table->data, weights.data, out.data, {}, n, ranks, 0.5f, 1e-5f};
    auto kernel = sizeof(T) == 4 ? add_norm_ranks_f32 : sizeof(Y) == 4 ? add_norm_ranks_f32_bf16 : add_norm_ranks_bf16;
    LAUNCH(kernel, rows, 256, 0, args);
    AddNormArgs plain = {want_x.data, y.data, weights.data, want.data, {}, n, 0.5f, 1e-5f};
    auto apart = sizeof(T) == 4 ? add_norm_f32 : add_norm_f32_bf16;
    LAUNCH(apart, rows, 256, 0, plain);
    check::equal(check::bytes(x) == check::bytes(want_x), true, "the residual stream");
    check::equal(check::bytes(out) == check::bytes(want), true, "the norm");
    return check::bytes(out);
  });
}

inline void join(int ranks, int rows, int n) {
  check::every_order("join_rows, join_columns " + std::to_string(ranks), [&] {
    Random random(rows * n);
    auto all = random.numbers<float>(size_t(rows) * n);
    std::vector<double> want(all.begin(), all.end());
    Parts<float> of_rows, of_columns;
    std::vector<uint32_t> starts;
    for (int r = 0; r <= ranks; r++) starts.push_back(n * r / ranks);
    for (int r = 0; r < ranks; r++) {
      int from = rows * r / ranks, to = rows * (r + 1) / ranks;
      of_rows.add(std::vector<float>(all.begin() + size_t(from) * n, all.begin() + size_t(to) * n));
      std::vector<float> columns;
      for (int row = 0; row < rows; row++)
        columns.insert(columns.end(), all.begin() + row * n + starts[r], all.begin() + row * n + starts[r + 1]);
      of_columns.add(columns);
    }
    of_rows.close(), of_columns.close();
    Buffer<float> out(all.size()), other(all.size());
    Buffer<uint32_t> start_buffer(starts);
    dim3 grid(rows, (n + 255) / 256);
    using Table = const float *const *;
    JoinRowsArgs by_rows = {Table(of_rows.table->data), out.data, rows, n, ranks};
    LAUNCH(join_rows, grid, 256, 0, by_rows);
    check::close(out.data, want, 0);
    JoinColumnsArgs by_columns = {Table(of_columns.table->data), start_buffer.data, other.data, n, ranks};
    LAUNCH(join_columns, grid, 256, 0, by_columns);
    check::close(other.data, want, 0);
    return check::bytes(out) + check::bytes(other);
  });
}

// Every rank packs its parts; `combine` adds up the share of each rank from what the ranks send to it.
template <class T, class Combine>
void packed(int ranks, int rows, int top_k, int n, const std::vector<uint32_t> &rank_of, const Parts<T> &parts,
            Combine combine) {
  int routes = rows * top_k;
  Buffer<uint32_t> ranks_of(rank_of), slots(routes), starts(ranks * (ranks + 1));
  MoeSlotsArgs places = {ranks_of.data, slots.data, starts.data, rows, top_k, ranks};
  LAUNCH(moe_slots, ranks, 256, 0, places);
  std::vector<std::unique_ptr<Buffer<T>>> all;
  for (int r = 0; r < ranks; r++) {
    uint32_t count = 0;
    for (int route = 0; route <= routes; route++) {
      for (int reader = 0; reader < ranks; reader++)
        if (rows * reader / ranks * top_k == route) check::equal(starts[r * (ranks + 1) + reader], count, "a share");
      if (route == routes || rank_of[route] != uint32_t(r)) continue;
      check::equal(slots[route], count++, "the slot of a route");
    }
    check::equal(starts[r * (ranks + 1) + ranks], count, "the routes of a rank");
    all.push_back(std::make_unique<Buffer<T>>(std::max<size_t>(count * size_t(n), 1)));
    MoePackArgs args = {parts.buffers[r]->data, ranks_of.data, slots.data, all[r]->data, n, r};
    auto kernel = sizeof(T) == 4 ? moe_pack_f32 : moe_pack_bf16;
    LAUNCH(kernel, dim3(routes, (n + 255) / 256), 256, 0, args);
  }
  for (int reader = 0; reader < ranks; reader++) {
    // What is sent is copied, so that a read beyond it is found.
    std::vector<std::unique_ptr<Buffer<T>>> sent;
    std::vector<const void *> at;
    for (int r = 0; r < ranks; r++) {
      uint32_t *bounds = &starts[r * (ranks + 1) + reader];
      std::vector<T> share(all[r]->data + size_t(bounds[0]) * n, all[r]->data + size_t(bounds[1]) * n);
      if (share.empty()) share.resize(1);
      sent.push_back(std::make_unique<Buffer<T>>(share));
      at.push_back(sent[r]->data);
    }
    Buffer<const void *> table(at);
    Buffer<float> out(size_t(rows) * n);
    combine(slots, starts, table, reader, out.data);
  }
}

// Dispatch over `ranks` ranks, then the sums of two slices of rows: the bits of moe_combine, which knows all parts.
template <class T>
void experts(int ranks, int rows, int top_k, int experts, int n, bool with_shared) {
  check::every_order("moe_dispatch, moe_combine_ranks " + std::to_string(ranks), [&] {
    Random random(rows + n + experts);
    std::vector<uint32_t> ids, tokens(rows), positions(rows), holders;
    for (int r = 0; r < rows; r++)
      for (uint32_t id : random.distinct(top_k, experts)) ids.push_back(id);
    for (int r = 0; r < rows; r++) tokens[r] = r == 1 ? NONE : random.below(1000), positions[r] = random.below(5000);
    for (int e = 0; e < experts; e++) {
      auto held = random.distinct(1 + random.below(ranks), ranks);
      std::sort(held.begin(), held.end());
      holders.push_back(held.size());
      held.resize(ranks, 12345);
      holders.insert(holders.end(), held.begin(), held.end());
    }
    int routes = rows * top_k;
    Buffer<uint32_t> id_buffer(ids), of_rows(tokens), position_buffer(positions), holder_buffer(holders);
    Buffer<uint32_t> ranks_of(routes), mine(routes);
    Buffer<unsigned long long> counts(std::vector<unsigned long long>(experts, 7));
    std::vector<uint32_t> rank_of(routes);
    for (int rank = 0; rank < ranks; rank++) {
      MoeDispatchArgs args = {id_buffer.data, of_rows.data, position_buffer.data, holder_buffer.data, ranks_of.data,
                              mine.data, rank == 0 ? counts.data : nullptr, routes, top_k, rank, ranks};
      LAUNCH(moe_dispatch, (routes + 255) / 256, 256, 0, args);
      for (int i = 0; i < routes; i++) {
        bool computed = tokens[i / top_k] != NONE, own = computed && int(ranks_of[i]) == rank;
        check::equal(mine[i], own ? ids[i] : OTHER_RANK, "the expert of a route");
        if (rank > 0) check::equal(ranks_of[i], rank_of[i], "all ranks agree");
        rank_of[i] = ranks_of[i];
        const uint32_t *held = &holders[size_t(ids[i]) * (1 + ranks)];
        bool holds = std::find(held + 1, held + 1 + held[0], rank_of[i]) != held + 1 + held[0];
        check::equal(computed ? holds : rank_of[i] == NONE, true, "the rank holds the expert");
      }
    }
    std::vector<uint64_t> want_counts(experts, 7);
    for (int i = 0; i < routes; i++) want_counts[ids[i]] += tokens[i / top_k] != NONE;
    for (int e = 0; e < experts; e++) check::equal(counts[e], want_counts[e], "routes of an expert");

    // Each rank has the parts of its routes; what it does not compute is never read.
    auto all = random.numbers<T>(size_t(routes) * n);
    Parts<T> parts, shared(random, ranks, size_t(rows) * n);
    for (int r = 0; r < ranks; r++) {
      std::vector<T> own(all.size(), from_float<T>(NAN));
      for (size_t i = 0; i < all.size(); i++)
        if (int(rank_of[i / n]) == r) own[i] = all[i];
      parts.add(own);
    }
    parts.close();
    auto weights = random.numbers<float>(routes);
    Buffer<float> weight_buffer(weights), out(size_t(rows) * n), whole(size_t(rows) * n);
    Buffer<T> all_parts(all);
    auto kernel = sizeof(T) == 4 ? moe_combine_ranks_f32 : moe_combine_ranks_bf16;
    int middle = rows / 2;
    for (auto [first, end] : {std::pair(0, middle), std::pair(middle, rows)}) {
      if (first == end) continue;
      std::vector<const void *> at, shared_at;
      for (int r = 0; r < ranks; r++) {
        at.push_back(parts.buffers[r]->data + size_t(first) * top_k * n);
        shared_at.push_back(shared.buffers[r]->data + size_t(first) * n);
      }
      Buffer<const void *> table(at), shared_table(shared_at);
      MoeCombineRanksArgs args = {table.data, with_shared ? shared_table.data : nullptr, id_buffer.data, ranks_of.data,
                                  of_rows.data, nullptr, nullptr, weight_buffer.data, out.data + size_t(first) * n,
                                  first, n, top_k, 0, ranks};
      LAUNCH(kernel, dim3(end - first, (n + 255) / 256), 256, 0, args);
    }
    packed<T>(ranks, rows, top_k, n, rank_of, parts, [&](auto &slots, auto &starts, auto &table, int rank, float *to) {
      int first = rows * rank / ranks, count = rows * (rank + 1) / ranks - first;
      std::vector<const void *> shared_at;
      for (int r = 0; r < ranks; r++) shared_at.push_back(shared.buffers[r]->data + size_t(first) * n);
      Buffer<const void *> shared_table(shared_at);
      MoeCombineRanksArgs args = {table.data, with_shared ? shared_table.data : nullptr, id_buffer.data, ranks_of.data,
                                  of_rows.data, slots.data, starts.data, weight_buffer.data, to, first, n, top_k, rank,
                                  ranks};
      if (count) LAUNCH(kernel, dim3(count, (n + 255) / 256), 256, 0, args);
      for (size_t i = 0; i < size_t(count) * n; i++)
        check::equal(float_bits(to[i]), float_bits(out[size_t(first) * n + i]), "a sum of packed parts");
    });
    MoeCombineArgs args = {all_parts.data, nullptr, id_buffer.data, nullptr, of_rows.data, nullptr, weight_buffer.data,
                           whole.data, n, top_k};
    auto alone = sizeof(T) == 4 ? moe_combine_f32 : moe_combine_bf16;
    LAUNCH(alone, dim3(rows, (n + 255) / 256), 256, 0, args);
    for (size_t i = 0; i < out.size; i++) {
      bool computed = tokens[i / n] != NONE;
      float want = with_shared && computed ? whole[i] + shared.sum(i) : whole[i];
      check::equal(float_bits(out[i]), float_bits(want), "a sum");
    }
    return check::bytes(out);
  });
}

// The embedding of a vocabulary that ranks share, added over ranks, has the bits of the whole table.
inline void embed_over_ranks() {
  check::every_order("embed over ranks", [&] {
    constexpr int VOCAB = 10, HIDDEN = 40, RANKS = 3;
    Random random(3);
    auto table = random.numbers<bf16>(VOCAB * HIDDEN);
    table[0] = from_float<bf16>(-0.0f);
    std::vector<uint32_t> ids = {0, 9, 3, NONE, 6, 12};
    Buffer<uint32_t> id_buffer(ids);
    Parts<float> parts;
    for (uint32_t r = 0; r < RANKS; r++) {
      uint32_t first = VOCAB * r / RANKS, count = VOCAB * (r + 1) / RANKS - first;
      Buffer<bf16> own(std::vector<bf16>(table.begin() + first * HIDDEN, table.begin() + (first + count) * HIDDEN));
      Buffer<float> out(ids.size() * HIDDEN);
      EmbedArgs args = {own.data, id_buffer.data, out.data, HIDDEN, first, count};
      LAUNCH(embed_bf16, ids.size(), 256, 0, args);
      parts.add(std::vector<float>(out.data, out.data + out.size));
    }
    for (size_t i = 0; i < ids.size() * HIDDEN; i++) {
      uint32_t id = ids[i / HIDDEN];
      float want = id == NONE ? 0.0f : id >= VOCAB ? -0.0f : to_float(table[id * HIDDEN + i % HIDDEN]);
      check::equal(float_bits(parts.sum(i)), float_bits(want), "a number of the table");
    }
    return std::string();
  });
}

// All letters of a round are there; the table has what the others offer, and what this rank does.
inline void meet() {
  check::every_order("meet_ranks", [&] {
    constexpr int RANKS = 3, RANK = 1;
    std::vector<RankLetter> none(2 * RANKS, RankLetter{{0, 0}, 0, 0});
    Buffer<RankLetter> boxes[RANKS] = {none, none, none};
    std::vector<RankLetter *> all = {boxes[0].data, boxes[1].data, boxes[2].data};
    Buffer<RankLetter *> table_of_boxes(all);
    Buffer<uint32_t> round(std::vector<uint32_t>{4}), aborted(std::vector<uint32_t>{0});
    Buffer<uint64_t> table(2 * RANKS);
    // Round 5 is odd.
    for (uint32_t r : {0, 2}) boxes[RANK][RANKS + r] = {{1000 * (r + 1), r == 0 ? 0 : 77u}, 5, 0};
    Buffer<uint32_t> count(std::vector<uint32_t>{11}), passed(std::vector<uint32_t>{0});
    MeetArgs args = {table_of_boxes.data, round.data, aborted.data, table.data,  {2000, 88},
                     {8, 1},              count.data, passed.data,  RANK,        RANKS};
    LAUNCH(meet_ranks, 1, 64, 0, args);
    check::equal(passed[0], 12, "the exchanges that were passed");
    uint64_t want[] = {1008, 2008, 3008, 0, 89, 78};
    for (int i = 0; i < 2 * RANKS; i++) check::equal(table[i], want[i], "an offer");
    check::equal(round[0], 5, "the round");
    for (int r : {0, 2}) {
      RankLetter letter = boxes[r][RANKS + RANK];
      check::equal(letter.round == 5 && letter.offers[0] == 2000 && letter.offers[1] == 88, true, "this rank's letter");
    }
    // The group has ended: ranks that have not come offer nothing.
    *aborted.data = 1;
    boxes[RANK][0] = {{5000, 0}, 6, 0};
    LAUNCH(meet_ranks, 1, 64, 0, args);
    uint64_t rest[] = {5008, 2008, 0, 0, 89, 0};
    for (int i = 0; i < 2 * RANKS; i++) check::equal(table[i], rest[i], "an offer after the end");
    check::equal(passed[0], 13, "the end passes too");
    return check::bytes(table);
  });
}

inline void missing_parts_are_zeros() {
  check::test = "parts that are missing";
  Buffer<const void *> none(std::vector<const void *>{nullptr, nullptr});
  Buffer<float> out(4);
  SumRanksArgs args = {none.data, out.data, 4, 2};
  LAUNCH(sum_ranks_bf16, 1, 256, 0, args);
  JoinRowsArgs rows = {reinterpret_cast<const float *const *>(none.data), out.data, 2, 2, 2};
  LAUNCH(join_rows, dim3(2, 1), 256, 0, rows);
  for (int i = 0; i < 4; i++) check::equal(float_bits(out[i]), 0, "a number");
}

inline void write() {
  check::test = "write_table";
  WriteTableArgs args = {};
  Buffer<uint64_t> table(6);
  Buffer<uint32_t> count(std::vector<uint32_t>{4}), passed(std::vector<uint32_t>{0});
  args.table = table.data, args.ranks = 3, args.count = count.data, args.passed = passed.data;
  for (int r = 0; r < 3; r++) args.addresses[0][r] = 10 + r, args.addresses[1][r] = 20 + r;
  LAUNCH(write_table, 1, 64, 0, args);
  uint64_t want[] = {10, 11, 12, 20, 21, 22};
  for (int i = 0; i < 6; i++) check::equal(table[i], want[i], "an address");
  check::equal(count[0] == 5 && passed[0] == 5, true, "an exchange was passed");
}

inline void test() {
  for (int ranks : {1, 2, 3, 5, 64}) {
    sum<float>(ranks, 7);
    sum<bf16>(ranks, 600);
    add_norm<float, float>(ranks, 2, 300);
    add_norm<bf16, bf16>(ranks, 3, 33);
    add_norm<float, bf16>(ranks, 1, 257);
    for (int rows : {1, 2, 7}) join(ranks, rows, 300);
  }
  for (int ranks : {1, 2, 4, 7})
    for (bool with_shared : {false, true}) {
      experts<float>(ranks, 5, 3, 9, 33, with_shared);
      experts<bf16>(ranks, 2, 8, 64, 260, with_shared);
      experts<float>(ranks, 1, 1, 1, 1, with_shared);
    }
  embed_over_ranks();
  meet();
  missing_parts_are_zeros();
  write();
}

}  // namespace rank_tests
