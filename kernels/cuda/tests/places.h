// What the fast kernels are given and what is made of their results: moe_place, rows by place, latent_work and
// latent_merge, against plain loops.
#include "check.h"

namespace place_tests {

using check::Buffer;
using check::Random;
using check::value;

// Experts with these numbers of routes.
inline void place(const std::vector<uint32_t> &counts, int groups, int tile) {
  check::every_order("moe_place", [&] {
    int held = counts.size(), routes = 0;
    std::vector<uint32_t> starts;
    for (uint32_t count : counts) starts.push_back(routes), routes += count;
    starts.push_back(routes);
    Random random(routes + tile);
    auto order = random.distinct(routes, routes + 5);
    int room = 3;
    for (uint32_t count : counts) room += (count + tile - 1) / tile * tile;
    Buffer<uint32_t> count_buffer(counts), start_buffer(starts), order_buffer(order);
    Buffer<uint32_t> places(room), ends(groups), begins(groups + 1), of_routes(routes + 5);
    MoePlaces to = {places.data, ends.data, begins.data, of_routes.data, held, groups, tile, room};
    MoePlaceArgs args = {count_buffer.data, start_buffer.data, order_buffer.data, to};
    LAUNCH(moe_place, held + 1, 256, 0, args);
    std::vector<uint32_t> want(room, NONE);
    uint32_t at = 0;
    for (int g = 0; g < groups; g++) {
      uint32_t count = g < held ? counts[g] : 0;
      check::equal(begins[g], at, "begin");
      check::equal(ends[g], at + count, "end");
      for (uint32_t i = 0; i < count; i++) want[at + i] = order[starts[g] + i];
      at += (count + tile - 1) / tile * tile;
    }
    check::equal(begins[groups], at, "the end of all");
    for (int i = 0; i < room; i++) check::equal(places[i], want[i], "the route at a place");
    for (int i = 0; i < room; i++)
      if (want[i] != NONE) check::equal(of_routes[want[i]], i, "the place of a route");
    return check::bytes(places) + check::bytes(ends) + check::bytes(begins);
  });
}

// Rows of x by place, their codes, the product of two by place, and back by route.
inline void rows_by_place(int rows, int per_row, int n) {
  check::every_order("rows by place", [&] {
    Random random(rows + n);
    int routes = rows * per_row, places = routes + 7, groups = (n + 127) / 128, scale_stride = (places + 3) / 4 * 4;
    auto order = random.distinct(routes, places);  // The place of each route.
    std::vector<uint32_t> at(places, NONE);
    for (int r = 0; r < routes; r++) at[order[r]] = r;
    int stride = n % 8 ? n + 3 : n + 8;  // Of whole copies, or not.
    auto x = random.numbers<bf16>(size_t(rows) * stride, 4), up = random.numbers<bf16>(size_t(places) * n);
    Buffer<bf16> xs(x), ups(up), gathered(size_t(places) * n), product(gathered.size), back(size_t(routes) * n);
    Buffer<uint8_t> codes(gathered.size), product_codes(gathered.size), whole_codes(size_t(rows) * n);
    Buffer<float> scales(size_t(groups) * scale_stride), product_scales(scales.size), whole_scales(size_t(rows) * groups);
    // A block has two places or three. What lies behind the last that is used is not read.
    Buffer<uint32_t> used(std::vector<uint32_t>{uint32_t(places)});
    at.push_back(0);
    Buffer<uint32_t> index(at);
    int blocks = (places + 2) / 3;
    dim3 by_columns(blocks, (n + 2047) / 2048), by_group(blocks, (groups + 7) / 8);
    GatherArgs gather_args = {xs.data, index.data, used.data, gathered.data, n, stride, per_row};
    LAUNCH(gather_bf16, by_columns, 256, 0, gather_args);
    Codes to = {codes.data, scales.data, scale_stride}, of_product = {product_codes.data, product_scales.data, scale_stride};
    QuantizeArgs quantize_args = {xs.data, to, index.data, used.data, n, stride, per_row};
    LAUNCH(quantize_fp8_bf16, by_group, 256, 0, quantize_args);
    QuantizeArgs whole_args = {xs.data, {whole_codes.data, whole_scales.data, 0}, nullptr, nullptr, n, stride, 1};
    LAUNCH(quantize_fp8_bf16, dim3(rows, (groups + 7) / 8), 256, 0, whole_args);
    SiluMulArgs silu_args = {gathered.data, ups.data, product.data, index.data, used.data, n, n};
    LAUNCH(silu_mul_bf16, by_columns, 256, 0, silu_args);
    SiluMulQuantArgs both_args = {gathered.data, ups.data, of_product, index.data, used.data, n, n};
    LAUNCH(silu_mul_quant_bf16, by_group, 256, 0, both_args);
    ScatterArgs scatter_args = {gathered.data, index.data, used.data, back.data, n};
    LAUNCH(scatter_bf16, by_columns, 256, 0, scatter_args);
    auto untouched = [](auto value) {
      unsigned char bytes[sizeof value];
      memcpy(bytes, &value, sizeof value);
      for (unsigned char byte : bytes)
        if (byte != host::POISON) return false;
      return true;
    };
    for (int p = 0; p < places; p++)
      for (int c = 0; c < n; c++) {
        size_t i = size_t(p) * n + c, scale = size_t(c / 128) * scale_stride + p;
        if (at[p] == NONE) {
          if (!untouched(gathered[i]) || !untouched(codes[i]) || !untouched(product[i]) || !untouched(product_codes[i]) ||
              !untouched(scales[scale]) || !untouched(product_scales[scale]))
            check::fail("a place without a route is written");
          continue;
        }
        size_t row = at[p] / per_row;
        check::equal(gathered[i].bits, x[row * stride + c].bits, "a row");
        check::equal(codes[i], whole_codes[row * n + c], "a code");
        check::equal(float_bits(scales[scale]), float_bits(whole_scales[row * groups + c / 128]), "a scale");
        check::equal(back[size_t(at[p]) * n + c].bits, gathered[i].bits, "a row by route");
        float want = silu(to_float(gathered[i])) * to_float(up[i]);
        check::equal(product[i].bits, to_bf16(want).bits, "a product");
        double code = to_float(e4m3_to_bf16(product_codes[i])) * product_scales[scale];
        if (std::fabs(code - want) > std::fabs(want) / 14 + product_scales[scale] / 512) check::fail("a product's code");
      }
    return check::bytes(gathered) + check::bytes(codes) + check::bytes(scales) + check::bytes(product_codes) + check::bytes(back);
  });
}

struct Span {
  uint32_t sequence;
  int start, length;
};

// The pieces of rows from `first` on, of spans that follow each other.
inline void latent(const std::vector<Span> &spans, int heads, int chunk, int first, int blocks) {
  check::every_order("latent_work, latent_merge", [&] {
    constexpr int LATENT = 512, STRIDE = 40;
    std::vector<uint32_t> sequences, positions;
    for (const Span &span : spans)
      for (int i = 0; i < span.length; i++) {
        sequences.push_back(span.sequence);
        positions.push_back(span.sequence == NONE ? NONE : span.start + i);
      }
    int all = sequences.size(), rows = all - first, tile = 64 / heads, chunks = 1;
    for (int r = first; r < all; r++)
      if (sequences[r] != NONE) chunks = std::max(chunks, int(positions[r]) / chunk + 1);
    Buffer<uint32_t> of_rows(sequences), at(positions);
    size_t room = size_t(rows) * chunks;
    std::vector<std::unique_ptr<Buffer<int>>> arrays;
    for (int i = 0; i < 11; i++)
      arrays.push_back(std::make_unique<Buffer<int>>(i < 8 ? room : i < 10 ? size_t(rows) : size_t(blocks) + 1));
    auto array = [&](int i) { return arrays[i]->data; };
    LatentWorkArgs args = {of_rows.data, at.data,  array(0), array(1), array(2), array(3), array(4), array(5), array(6), array(7),
                           array(8),     array(9), array(10), first,   rows,     heads,    STRIDE,   tile,     chunk,    chunks,
                           blocks,       0,        0,         0,       0};
    LAUNCH(latent_work, 1, 256, 0, args);
    int *work = array(10);
    check::equal(work[0], 0, "the first block's work");
    auto cost = [&](int w) { return array(7)[w] - array(6)[w] + latent::PIECE; };
    int64_t total = 0;
    for (int w = 0; w < work[blocks]; w++) total += cost(w);
    for (int b = 0; b < blocks; b++) {
      int64_t share = 0;
      for (int w = work[b]; w < work[b + 1]; w++) share += cost(w);
      if (work[b + 1] < work[b] || share > total / blocks + chunk + latent::PIECE) check::fail("unequal shares");
    }
    // Each row has all its positions once, in pieces of the same rows, and each query a place of its own in partial.
    std::vector<std::vector<std::pair<int, int>>> seen(rows);
    std::map<int, std::pair<int, int>> taken;
    for (int w = 0; w < work[blocks]; w++) {
      int row = array(0)[w], count = array(3)[w], from = array(6)[w], to = array(7)[w];
      check::equal(array(1)[w], sequences[row] * STRIDE, "the block table");
      check::equal(array(4)[w], positions[row] + count, "the positions");
      check::equal(array(5)[w], 0, "the first query");
      if (count * heads > 64 || from % chunk || to > array(4)[w]) check::fail("a piece of work");
      for (int i = 0; i < count; i++) {
        check::equal(sequences[row + i], sequences[row], "a tile's sequence");
        check::equal(positions[row + i], positions[row] + i, "a tile's position");
        check::equal(array(8)[row - first + i], row, "the tile's first row");
        check::equal(array(9)[row - first + i], count, "the tile's rows");
        seen[row - first + i].push_back({from, std::min(to, int(positions[row + i]) + 1)});
        for (int h = 0; h < heads && array(2)[w] >= 0; h++)
          if (!taken.insert({array(2)[w] + i * heads + h, {row + i, h}}).second) check::fail("a place in partial twice");
      }
    }
    for (int r = first; r < all; r++) {
      int end = sequences[r] == NONE ? 0 : positions[r] + 1, reached = 0;
      for (auto [from, to] : seen[r - first]) {
        check::equal(from, reached, "a row's positions");
        reached = to;
      }
      check::equal(reached, end, "a row's last position");
    }
    // Parts are added with their weights; rows with one piece stay as they are.
    size_t partial_rows = room * heads;
    Random random(all);
    auto parts = random.numbers<bf16>(partial_rows * LATENT);
    auto scale = random.numbers<float>(partial_rows, 6);
    Buffer<bf16> partial(parts), out(size_t(all) * heads * LATENT);
    Buffer<float> partial_scale(scale);
    LatentMergeArgs merge = {of_rows.data, at.data, array(8), array(9), partial.data, partial_scale.data, out.data,
                             first,        heads,   chunk,    chunks,   heads * LATENT};
    LAUNCH(latent_merge, dim3(rows, heads), 128, 0, merge);
    std::map<std::pair<int, int>, std::vector<int>> places;
    for (auto [at, query] : taken) places[query].push_back(at);
    for (int r = first; r < all; r++)
      for (int h = 0; h < heads; h++) {
        auto &mine = places[{r, h}];
        double total = 0;
        for (int p : mine) total += std::exp2(scale[p]);
        for (int c = 0; c < LATENT; c += 37) {
          bf16 got = out[(size_t(r) * heads + h) * LATENT + c];
          double want = 0;
          for (int p : mine) want += std::exp2(scale[p]) / total * to_float(parts[size_t(p) * LATENT + c]);
          if (mine.empty() && sequences[r] != NONE) {
            check::equal(got.bits, 0xffff, "a row with one piece");
          } else if (std::fabs(to_float(got) - want) > 5e-3 * std::max(1.0, std::fabs(want))) {
            check::fail("the sum of parts");
          }
        }
      }
    std::string bytes = check::bytes(out);
    for (auto &each : arrays) bytes += check::bytes(*each);
    return bytes;
  });
}

// Experts with these numbers of rows, of which the last `free` are of none; empty: one weight, with a bias.
template <class T>
void scale(const std::vector<uint32_t> &counts, int n, int free, bool ordered) {
  check::every_order("scale_outputs", [&] {
    std::vector<uint32_t> starts{0};
    for (uint32_t count : counts) starts.push_back(starts.back() + count);
    int held = std::max<int>(1, counts.size()), rows = (counts.empty() ? 5 : starts.back()) + free;
    Random random(rows + n);
    auto x = random.numbers<T>(size_t(rows) * n, 2);
    auto scales = random.numbers<float>(size_t(held) * n, 1), bias = random.numbers<float>(n, 1);
    auto order = random.distinct(rows, rows);
    Buffer<T> out(x);
    Buffer<float> scale_buffer(scales), bias_buffer(bias);
    Buffer<uint32_t> start_buffer(starts), order_buffer(order);
    ScaleOutputsArgs args = {out.data,
                             scale_buffer.data,
                             counts.empty() ? bias_buffer.data : nullptr,
                             counts.empty() ? nullptr : start_buffer.data,
                             ordered ? order_buffer.data : nullptr,
                             n,
                             held};
    auto kernel = sizeof(T) == 4 ? scale_outputs_f32 : scale_outputs_bf16;
    LAUNCH(kernel, dim3(rows, (n + 255) / 256), 256, 0, args);
    std::vector<double> want(x.size());
    for (size_t i = 0; i < x.size(); i++) want[i] = value(x, i);
    for (int i = 0; i < rows - free; i++) {
      int expert = 0;
      while (!counts.empty() && uint32_t(i) >= starts[expert + 1]) expert++;
      size_t row = ordered ? order[i] : i;
      for (int c = 0; c < n; c++) {
        want[row * n + c] = value(x, row * n + c) * scales[size_t(expert) * n + c] + (counts.empty() ? bias[c] : 0);
      }
    }
    check::close(out.data, want);
    return check::bytes(out);
  });
}

template <class T>
void scales() {
  scale<T>({}, 300, 0, false);
  scale<T>({3}, 7, 2, false);
  scale<T>({0, 2, 0, 0, 5, 1, 0}, 130, 4, true);
  scale<T>({0, 2, 0, 0, 5, 1, 0}, 257, 0, false);
}

inline void test() {
  scales<float>();
  scales<bf16>();
  for (int tile : {1, 64, 128}) {
    place({3}, 64, tile);
    place({0, 1, 64, 65, 0, 200, 128}, 64, tile);
    place({}, 64, tile);
    place({5, 0, 0}, 256, tile);
  }
  rows_by_place(3, 2, 300);
  rows_by_place(1, 8, 128);
  rows_by_place(5, 1, 17);
  rows_by_place(2, 3, 2056);
  // A prompt, decoding sequences, chunks that begin within a tile and within a chunk, rows without a sequence.
  latent({{0, 0, 70}}, 8, 64, 0, 5);
  latent({{3, 63, 1}, {1, 64, 1}, {0, 200, 1}, {NONE, 0, 2}, {2, 0, 1}}, 8, 64, 0, 132);
  latent({{0, 5, 20}, {1, 60, 140}}, 64, 128, 0, 7);
  latent({{0, 5, 20}, {1, 60, 300}}, 1, 64, 30, 3);
  latent({{NONE, 0, 3}}, 8, 64, 0, 4);
}

}  // namespace place_tests
