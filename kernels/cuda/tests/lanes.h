// A latent cache that is split over ranks: what each rank finds in its lanes, and their sum, against plain loops; and
// that neither the number of ranks nor other rows change a bit.
#pragma once
#include <map>

#include "attention.h"
#include "ranks.h"

namespace lane_tests {

using attention_tests::Case;
using check::Buffer;
using check::Random;
using rank_tests::Parts;

constexpr int TILE = attention::TILE, LANES = attention::LANES;

// A sequence's blocks of a rank, one lane after the other.
struct Tables {
  int per_tile, stride, lanes;
  std::vector<uint32_t> words;

  template <class T>
  Tables(const Case<T> &c, int rank, int ranks) : per_tile(TILE / c.s.block_size), lanes(LANES / ranks) {
    int tiles = (c.table_stride + per_tile - 1) / per_tile;
    stride = (tiles + LANES - 1) / LANES * per_tile;
    words.assign(c.s.lengths.size() * lanes * stride, NONE);
    for (size_t s = 0; s < c.s.lengths.size(); s++)
      for (int b = 0; b < c.table_stride; b++) {
        int tile = b / per_tile, lane = tile % LANES;
        if (lane % ranks == rank)
          words[(s * lanes + lane / ranks) * stride + tile / LANES * per_tile + b % per_tile] =
              c.tables[s * c.table_stride + b];
      }
  }
};

// The results of each rank's lanes by lane_attention, joined for each rank's heads: [rows, heads, width].
template <class T>
std::vector<T> over_ranks(const Case<T> &c, int ranks) {
  int heads = c.s.heads / ranks, rows = c.rows(), lanes = LANES / ranks, width = c.s.value_width;
  constexpr int NOPE = 3;
  Parts<T> latents, queries;
  for (int r = 0; r < ranks; r++) {
    std::vector<T> latent, query;
    for (int row = 0; row < rows; row++)
      for (int h = r * heads; h < (r + 1) * heads; h++) {
        size_t at = size_t(row) * c.s.heads + h;
        latent.insert(latent.end(), &c.qa[at * c.s.width_a], &c.qa[at * c.s.width_a] + c.s.width_a);
        query.resize(query.size() + NOPE, from_float<T>(NAN));
        query.insert(query.end(), &c.qb[at * c.s.width_b], &c.qb[at * c.s.width_b] + c.s.width_b);
      }
    latents.add(latent), queries.add(query);
  }
  latents.close(), queries.close();
  int wide = c.s.width_a + c.s.width_b;
  Buffer<T> all(size_t(rows) * c.s.heads * wide);
  LaneGatherArgs gather = {latents.table->data, queries.table->data,          all.data, heads, c.s.width_a,
                           c.s.width_b,         NOPE, heads * (NOPE + c.s.width_b)};
  LAUNCH((sizeof(T) == 4 ? lane_gather_f32 : lane_gather_bf16), dim3(rows, c.s.heads), 128, 0, gather);
  Buffer<T> keys(c.cache_a), more_keys(c.cache_b);
  Buffer<uint32_t> sequences(c.sequences), positions(c.positions);
  size_t of_reader = size_t(lanes) * rows * heads;
  std::vector<std::unique_ptr<Buffer<float>>> sums, scales;
  for (int r = 0; r < ranks; r++) {
    Tables tables(c, r, ranks);
    Buffer<uint32_t> table(tables.words);
    sums.push_back(std::make_unique<Buffer<float>>(of_reader * ranks * width));
    scales.push_back(std::make_unique<Buffer<float>>(of_reader * ranks));
    LaneAttentionArgs args = {};
    args.of.qa = all.data, args.of.qb = all.data + c.s.width_a;
    args.of.cache_a = args.of.cache_value = keys.data, args.of.cache_b = more_keys.data;
    args.of.tables = table.data, args.of.sequences = sequences.data, args.of.positions = positions.data;
    args.of.a_entry = args.of.value_entry = c.a_entry, args.of.b_entry = c.s.width_b;
    args.of.qa_stride = args.of.qb_stride = c.s.heads * wide, args.of.qa_head_stride = args.of.qb_head_stride = wide;
    args.of.width_a = c.s.width_a, args.of.width_b = c.s.width_b, args.of.value_width = width;
    args.of.group = c.s.heads, args.of.block_size = c.s.block_size, args.of.scale = 0.3f;
    args.of.table_stride = lanes * tables.stride;
    args.sums = sums[r]->data, args.scales = scales[r]->data, args.rows = rows, args.heads = heads, args.lanes = lanes;
    args.lane_first = r, args.lane_step = ranks, args.lane_stride = tables.stride;
    LAUNCH((sizeof(T) == 4 ? lane_attention_f32 : lane_attention_bf16), dim3(rows, c.s.heads, lanes), 128, wide * 4, args);
  }
  std::vector<T> found(size_t(rows) * c.s.heads * width);
  for (int reader = 0; reader < ranks; reader++) {
    std::vector<const void *> of_sums;
    std::vector<const float *> of_scales;
    for (int r = 0; r < ranks; r++) {
      of_sums.push_back(sums[r]->data + of_reader * reader * width);
      of_scales.push_back(scales[r]->data + of_reader * reader);
    }
    Buffer<const void *> sums_table(of_sums);
    Buffer<const float *> scales_table(of_scales);
    Buffer<T> out(size_t(rows) * heads * width);
    LaneJoinArgs join = {sums_table.data, scales_table.data, out.data, 0, rows, heads, width, ranks};
    LAUNCH((sizeof(T) == 4 ? lane_join_f32 : lane_join_f32_bf16), dim3(rows, heads), 128, 0, join);
    for (int row = 0; row < rows; row++)
      memcpy(static_cast<void *>(&found[(size_t(row) * c.s.heads + reader * heads) * width]),
             out.data + size_t(row) * heads * width, size_t(heads) * width * sizeof(T));
  }
  return found;
}

template <class T>
void attend(const attention_tests::Shape &shape) {
  std::string name = "lane_gather, lane_attention, lane_join, " + std::string(check::type_name<T>());
  Case<T> c(shape, shape.block_size);
  std::vector<T> one;
  check::every_order(name, [&] {
    one = over_ranks(c, 1);
    return std::string(reinterpret_cast<const char *>(one.data()), one.size() * sizeof(T));
  });
  check::test = name.c_str();
  for (size_t row = 0; row < c.rows(); row++)
    for (int head = 0; head < shape.heads; head++)
      check::close(&one[(row * shape.heads + head) * shape.value_width], c.expected(row, head));
  for (int ranks : {2, 4, 8}) {
    if (shape.heads % ranks) continue;
    auto many = over_ranks(c, ranks);
    if (memcmp(many.data(), one.data(), one.size() * sizeof(T))) check::fail("other bits with " + std::to_string(ranks) + " ranks");
  }
}

struct Span {
  uint32_t sequence;
  int start, length;
};

// latent_work's pieces of the lanes of a rank: each row has all its positions of each lane once, and each query places
// of its own, which lane_merge adds up.
inline void pieces(const std::vector<Span> &spans, int heads, int chunk, int rank, int ranks) {
  check::every_order("latent_work by lanes, lane_merge", [&] {
    constexpr int LATENT = 512, STRIDE = 40, BLOCKS = 7;
    std::vector<uint32_t> sequences, positions;
    int lanes = LANES / ranks, tile = 64 / heads, chunks = 1;
    for (const Span &span : spans)
      for (int i = 0; i < span.length; i++) {
        sequences.push_back(span.sequence);
        positions.push_back(span.sequence == NONE ? NONE : span.start + i);
        if (span.sequence != NONE) chunks = std::max(chunks, (span.start + i) / (LANES * TILE) * TILE / chunk + 2);
      }
    int rows = sequences.size(), own = 1;
    Buffer<uint32_t> of_rows(sequences), at(positions);
    size_t room = size_t(rows) * chunks * lanes;
    std::vector<std::unique_ptr<Buffer<int>>> arrays;
    for (int i = 0; i < 11; i++)
      arrays.push_back(std::make_unique<Buffer<int>>(i < 8 ? room : i < 10 ? size_t(rows) : size_t(BLOCKS) + 1));
    auto array = [&](int i) { return arrays[i]->data; };
    LatentWorkArgs args = {of_rows.data, at.data,  array(0), array(1), array(2), array(3), array(4), array(5),
                           array(6),     array(7), array(8), array(9), array(10), 0,       rows,     heads,
                           lanes * STRIDE, tile,   chunk,    chunks,   BLOCKS,   lanes,    rank,     ranks, STRIDE};
    LAUNCH(latent_work, 1, 256, 0, args);
    std::map<std::pair<int, int>, int> reached;                       // Of a row and a lane.
    std::map<std::tuple<int, int, int>, std::vector<int>> places;     // Of a row, a lane and a head.
    std::map<int, int> taken;
    for (int w = 0; w < array(10)[BLOCKS]; w++) {
      int row = array(0)[w], count = array(3)[w], from = array(6)[w], to = array(7)[w], sequence = sequences[row];
      int lane = array(1)[w] / STRIDE - sequence * lanes;
      if (array(1)[w] % STRIDE || lane < 0 || lane >= lanes) check::fail("the block table");
      if (count * heads > 64 || from % chunk || to <= from) check::fail("a piece of work");
      for (int i = 0; i < count; i++) {
        check::equal(sequences[row + i], sequence, "a tile's sequence");
        int &so_far = reached[{row + i, lane}];
        check::equal(from, so_far, "a row's positions");
        so_far = std::max(so_far, std::min(to, array(4)[w] - count + i + 1));
        for (int h = 0; h < heads; h++) {
          int place = array(2)[w] + i * heads + h;
          if (taken[place]++ || array(2)[w] < 0) check::fail("a place in partial");
          places[{row + i, lane, h}].push_back(place);
        }
      }
    }
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < lanes; i++) {
        int expected = 0;
        if (sequences[row] != NONE)
          for (int p = 0; p <= int(positions[row]); p++) expected += p / TILE % LANES == rank + i * ranks;
        check::equal(reached[{row, i}], expected, "the positions of a lane");
      }
    size_t partial_rows = room * heads;
    Random random(rows);
    auto parts = random.numbers<bf16>(partial_rows * LATENT);
    auto scale = random.numbers<float>(partial_rows, 6);
    Buffer<bf16> partial(parts), sums(size_t(heads) * lanes * rows * LATENT);
    Buffer<float> partial_scale(scale), scales(size_t(heads) * lanes * rows);
    // As many ranks as heads read, each a head.
    LaneMergeArgs merge = {of_rows.data, at.data, array(8), array(9), partial.data, partial_scale.data, sums.data, scales.data,
                           rows,         heads,   0,        own,      lanes,        rank,               ranks,     chunk,
                           chunks};
    LAUNCH(lane_merge, dim3(rows, heads, lanes), 128, 0, merge);
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < lanes; i++)
        for (int h = 0; h < heads; h++) {
          auto &mine = places[{row, i, h}];
          double total = 0;
          for (int p : mine) total += std::exp2(scale[p]);
          size_t result = (size_t(h) * lanes + i) * rows + row;
          if (mine.empty() ? scales[result] != -INFINITY : std::fabs(scales[result] - std::log2(total)) > 1e-4)
            check::fail("the weight of a lane");
          for (int c = 0; c < LATENT; c += 37) {
            double want = 0;
            for (int p : mine) want += std::exp2(scale[p]) / total * to_float(parts[size_t(p) * LATENT + c]);
            if (std::fabs(to_float(sums[result * LATENT + c]) - want) > 5e-3 * std::max(1.0, std::fabs(want)))
              check::fail("the sum of a lane");
          }
        }
    return check::bytes(sums) + check::bytes(scales);
  });
}

inline void test() {
  // Sequences within a tile, within the first tiles of all lanes, and beyond them.
  attend<float>({{1, 70, 600, 513}, 8, 8, 24, 8, 24, 16, 0, true});
  attend<bf16>({{1100, 64}, 8, 8, 17, 5, 17, 64, 0, true});
  attend<float>({{130}, 2, 2, 512, 64, 512, 32, 0, true, 67});
  for (int ranks : {1, 2, 8})
    for (int rank = 0; rank < ranks; rank += 3) {
      pieces({{0, 0, 70}}, 8, 64, rank, ranks);
      pieces({{3, 63, 1}, {1, 512, 1}, {0, 2000, 1}, {NONE, 0, 2}, {2, 0, 1}}, 8, 64, rank, ranks);
      pieces({{0, 500, 90}, {1, 60, 40}}, 4, 128, rank, ranks);
      pieces({{NONE, 0, 3}}, 64, 64, rank, ranks);
    }
}

}  // namespace lane_tests
