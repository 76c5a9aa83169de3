// attention, as GQA and as MLA, against plain loops; and that a row depends on neither blocks nor other rows.
#pragma once
#include "check.h"

namespace attention_tests {

using check::Buffer;
using check::Random;
using check::value;

struct Shape {
  std::vector<int> lengths;  // Of the sequences.
  int heads, group, width_a, width_b, value_width, block_size, window;
  bool mla;
  int last = 2;  // So many last positions of each sequence are rows.
};

// The sequences of a shape, in a paged cache.
template <class T>
struct Case {
  Shape s;
  int kv_heads, a_entry, value_entry, table_stride = 0, blocks = 0;
  std::vector<uint32_t> tables, sequences, positions;
  std::vector<T> qa, qb, cache_a, cache_b, cache_value;
  std::vector<float> sinks;  // Where there are windows.

  Case(const Shape &shape, uint64_t seed) : s(shape), kv_heads(s.heads / s.group) {
    Random random(seed);
    a_entry = s.mla ? s.width_a : kv_heads * s.width_a;
    value_entry = s.mla ? a_entry : kv_heads * s.value_width;
    for (int length : s.lengths) table_stride = std::max(table_stride, (length + s.block_size - 1) / s.block_size);
    blocks = table_stride * s.lengths.size() + 2;
    auto order = random.distinct(blocks, blocks);
    tables.assign(s.lengths.size() * table_stride, NONE);
    for (size_t i = 0; i < s.lengths.size(); i++) {
      for (int b = 0; b * s.block_size < s.lengths[i]; b++) tables[i * table_stride + b] = order[i * table_stride + b];
      for (int p = std::max(0, s.lengths[i] - s.last); p < s.lengths[i]; p++) {
        sequences.push_back(i);
        positions.push_back(p);
      }
    }
    sequences.push_back(NONE);
    positions.push_back(NONE);
    size_t places = size_t(blocks) * s.block_size;
    qa = random.numbers<T>(rows() * s.heads * s.width_a, 2);
    qb = random.numbers<T>(rows() * s.heads * s.width_b, 2);
    // Places that no row may read hold NaN.
    cache_a.assign(places * a_entry, from_float<T>(NAN));
    cache_b.assign(places * s.width_b, from_float<T>(NAN));
    cache_value.assign(places * value_entry, from_float<T>(NAN));
    for (size_t i = 0; i < s.lengths.size(); i++)
      for (int p = first(std::max(0, s.lengths[i] - s.last)); p < s.lengths[i]; p++)
        for (auto [cache, entry] : {std::pair(&cache_a, a_entry), {&cache_b, s.width_b}, {&cache_value, value_entry}})
          for (int c = 0; c < entry; c++) (*cache)[place(i, p) * entry + c] = from_float<T>(random.number());
    if (s.mla) cache_value = cache_a;
    if (s.window) sinks = random.numbers<float>(s.heads, 3);
  }

  size_t rows() const { return sequences.size(); }
  int first(int position) const { return s.window ? std::max(0, position - s.window + 1) : 0; }
  size_t place(int sequence, int p) const {
    return size_t(tables[sequence * table_stride + p / s.block_size]) * s.block_size + p % s.block_size;
  }

  // The cache as codes: what it holds becomes what they stand for. Scales of a place: those of keys, then of values.
  std::vector<uint8_t> codes_a, codes_b, codes_value;
  std::vector<float> scales;
  int sharing = 0, scales_of_place = 0, value_first = 0;

  void encode(int numbers) {
    sharing = numbers, value_first = a_entry / sharing;
    scales_of_place = s.mla ? value_first : value_first + value_entry / sharing;
    size_t places = size_t(blocks) * s.block_size;
    scales.assign(places * scales_of_place, NAN);
    auto store = [&](std::vector<T> &from, std::vector<uint8_t> &codes, int entry, int group, int first) {
      codes.assign(from.size(), 0x7f);
      if (!entry) return;
      Buffer<T> x(from);
      Buffer<uint8_t> to(codes);
      Buffer<float> scale(scales);
      std::vector<uint32_t> all(places), known(places, NONE);
      for (size_t place = 0; place < places; place++) {
        all[place] = place;
        if (value(from, place * entry) == value(from, place * entry)) known[place] = 0;
      }
      Buffer<uint32_t> place(all), position(known);
      CacheFp8Args args = {x.data, to.data, scale.data, position.data, place.data, entry, entry, group, scales_of_place, first};
      LAUNCH((sizeof(T) == 4 ? cache_fp8_f32 : cache_fp8_bf16), dim3(places, group ? entry / group : 1), 128, 0, args);
      codes.assign(to.data, to.data + to.size);
      scales.assign(scale.data, scale.data + scale.size);
      for (size_t i = 0; i < from.size(); i++)
        from[i] = from_float<T>(cache::number(codes[i]) *
                                (group ? scales[i / entry * scales_of_place + first + i % entry / group] : 1));
    };
    store(cache_a, codes_a, a_entry, sharing, 0);
    store(cache_b, codes_b, s.width_b, 0, 0);
    if (s.mla)
      cache_value = cache_a;
    else
      store(cache_value, codes_value, value_entry, sharing, value_first);
  }

  // Rows from..to of the kernel's result.
  std::vector<T> run(size_t from, size_t to) const {
    Buffer<T> a(qa), b(qb), keys(cache_a), more_keys(cache_b), values(cache_value);
    Buffer<uint8_t> coded_a(codes_a), coded_b(codes_b), coded_value(codes_value);
    Buffer<float> all_scales(scales), all_sinks(sinks);
    Buffer<T> out((to - from) * s.heads * s.value_width);
    Buffer<uint32_t> table_buffer(tables), sequence_buffer(sequences), position_buffer(positions);
    AttentionArgs args = {};
    args.qa = a.data + from * s.heads * s.width_a, args.qb = b.data + from * s.heads * s.width_b;
    args.cache_a = keys.data, args.cache_b = more_keys.data, args.cache_value = s.mla ? keys.data : values.data;
    args.out = out.data, args.tables = table_buffer.data;
    args.sequences = sequence_buffer.data + from, args.positions = position_buffer.data + from;
    args.a_entry = a_entry, args.b_entry = s.width_b, args.value_entry = value_entry;
    args.qa_stride = s.heads * s.width_a, args.qa_head_stride = s.width_a, args.width_a = s.width_a;
    args.a_head = s.mla ? 0 : s.width_a;
    args.qb_stride = s.heads * s.width_b, args.qb_head_stride = s.width_b, args.width_b = s.width_b;
    args.value_width = s.value_width, args.value_head = s.mla ? 0 : s.value_width, args.group = s.group;
    args.table_stride = table_stride, args.block_size = s.block_size, args.window = s.window, args.scale = 0.3f;
    if (!sinks.empty()) args.sinks = all_sinks.data;
    auto kernel = sizeof(T) == 4 ? attention_f32 : attention_bf16;
    if (sharing) {
      kernel = sizeof(T) == 4 ? attention_fp8_f32 : attention_fp8_bf16;
      args.cache_a = coded_a.data, args.cache_b = coded_b.data;
      args.cache_value = s.mla ? coded_a.data : coded_value.data, args.scales = all_scales.data;
      args.scales_of_place = scales_of_place, args.a_sharing = args.value_sharing = sharing;
      args.value_first = s.mla ? 0 : value_first;
    }
    LAUNCH(kernel, dim3(to - from, s.heads), 128, (s.width_a + s.width_b) * 4, args);
    return std::vector<T>(out.data, out.data + out.size);
  }

  std::vector<double> expected(size_t row, int head) const {
    std::vector<double> out(s.value_width, 0);
    if (sequences[row] == NONE) return out;
    std::vector<double> weights;
    int position = positions[row], kv = head / s.group;
    double largest = -INFINITY, total = 0;
    for (int p = first(position); p <= position; p++) {
      size_t at = place(sequences[row], p);
      double score = 0;
      for (int i = 0; i < s.width_a; i++)
        score += value(qa, (row * s.heads + head) * s.width_a + i) *
                 value(cache_a, at * a_entry + (s.mla ? 0 : kv * s.width_a) + i);
      for (int i = 0; i < s.width_b; i++)
        score += value(qb, (row * s.heads + head) * s.width_b + i) * value(cache_b, at * s.width_b + i);
      weights.push_back(score * 0.3f);
      largest = std::max(largest, weights.back());
    }
    for (double &w : weights) total += w = std::exp(w - largest);
    if (!sinks.empty()) total += std::exp(sinks[head] - largest);
    for (int p = first(position); p <= position; p++)
      for (int i = 0; i < s.value_width; i++)
        out[i] += weights[p - first(position)] / total *
                  value(cache_value, place(sequences[row], p) * value_entry + (s.mla ? 0 : kv * s.value_width) + i);
    return out;
  }
};

// sharing: numbers of an entry whose codes share a scale; 0: the cache has numbers.
template <class T>
void attend(const Shape &shape, int sharing = 0) {
  std::string name = "attention " + std::to_string(sizeof(T) * 8) + " bits, block " + std::to_string(shape.block_size) +
                     ", window " + std::to_string(shape.window) + (shape.mla ? ", MLA" : "") + (sharing ? ", codes" : "");
  Case<T> c(shape, shape.block_size);
  if (sharing) c.encode(sharing);
  std::vector<T> all;
  check::every_order(name, [&] {
    all = c.run(0, c.rows());
    return std::string(reinterpret_cast<const char *>(all.data()), all.size() * sizeof(T));
  });
  int width = shape.value_width;
  for (size_t row = 0; row < c.rows(); row++)
    for (int head = 0; head < shape.heads; head++)
      check::close(&all[(row * shape.heads + head) * width], c.expected(row, head));
  // A row alone, and in blocks of another size, has the same bits.
  size_t row = c.rows() - 2, row_size = size_t(shape.heads) * width;
  if (auto alone = c.run(row, row + 1); memcmp(alone.data(), &all[row * row_size], row_size * sizeof(T)))
    check::fail("the row depends on the others");
}

inline void block_size_changes_nothing() {
  check::test = "attention, block sizes";
  // The values must be at the same positions: one sequence, in blocks of 1 and of 64.
  Shape shape = {{150}, 2, 2, 16, 0, 16, 64, 0, false};
  Case<float> wide(shape, 1);
  shape.block_size = 1;
  Case<float> narrow(shape, 2);
  narrow.qa = wide.qa;
  for (int p = 0; p < 150; p++)
    for (int i = 0; i < 16; i++) {
      narrow.cache_a[narrow.place(0, p) * 16 + i] = wide.cache_a[wide.place(0, p) * 16 + i];
      narrow.cache_value[narrow.place(0, p) * 16 + i] = wide.cache_value[wide.place(0, p) * 16 + i];
    }
  auto a = wide.run(0, 2), b = narrow.run(0, 2);
  if (memcmp(a.data(), b.data(), a.size() * sizeof(float))) check::fail("the result depends on the size of blocks");
}

template <class T>
void test_type() {
  attend<T>({{1, 2, 70, 64, 65}, 4, 2, 16, 0, 16, 16, 0, false});
  attend<T>({{130}, 3, 3, 64, 0, 64, 64, 0, false});
  attend<T>({{9, 20}, 2, 1, 7, 0, 7, 4, 0, false});         // Widths that are not of whole warps.
  attend<T>({{100, 3, 64}, 4, 2, 8, 0, 8, 16, 10, false});  // Windows that begin within a tile.
  attend<T>({{200, 129}, 2, 2, 8, 0, 8, 16, 64, false});    // Windows that begin at a tile.
  attend<T>({{70, 5}, 3, 3, 48, 8, 48, 16, 0, true});       // MLA
  attend<T>({{3}, 1, 1, 512, 64, 512, 64, 0, true});        // MLA as in DeepSeek-V3
  attend<T>({{1, 2, 70, 64, 65}, 4, 2, 16, 0, 16, 16, 0, false}, 16);
  attend<T>({{100, 3, 64}, 4, 2, 7, 0, 7, 16, 10, false}, 7);
  attend<T>({{70, 3}, 1, 1, 512, 64, 512, 64, 0, true}, 128);
}

inline void test() {
  test_type<float>();
  test_type<bf16>();
  block_size_changes_nothing();
}

}  // namespace attention_tests
