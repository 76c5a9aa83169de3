// flash, whole and split, against plain loops; and that all ways to compute a row give the same bits.
#include "attention.h"

namespace flash_tests {

using attention_tests::Case;
using attention_tests::Shape;
using check::Buffer;

// Rows from..to, by one block for `tile_rows` rows; 0: by a block for each chunk.
inline std::vector<bf16> run(const Case<bf16> &c, size_t from, size_t to, int tile_rows) {
  const Shape &s = c.s;
  Buffer<bf16> q(c.qa), k(c.cache_a), v(c.cache_value), out((to - from) * s.heads * s.width_a);
  Buffer<uint32_t> tables(c.tables), sequences(c.sequences), positions(c.positions);
  int width = s.width_a <= 64 ? 64 : 128, rows = int(to - from), kv_heads = s.heads / s.group;
  FlashArgs args = {};
  args.q = q.data, args.k = k.data, args.v = v.data, args.out = out.data - from * s.heads * s.width_a;
  args.sequences = sequences.data, args.positions = positions.data, args.tables = tables.data;
  args.entry = c.a_entry, args.first = from, args.rows = rows, args.q_stride = s.heads * s.width_a;
  args.head_dim = s.width_a, args.group = s.group, args.tile_rows = std::max(1, tile_rows);
  args.table_stride = c.table_stride, args.block_size = s.block_size, args.window = s.window;
  args.chunks = (c.table_stride * s.block_size + flash::CHUNK - 1) / flash::CHUNK;
  args.partial_stride = width + 4, args.scale = 0.3f;
  Buffer<uint8_t> coded_k(c.codes_a), coded_v(c.codes_value);
  Buffer<float> scales(c.scales), sinks(c.sinks);
  if (!c.sinks.empty()) args.sinks = sinks.data;
  bool codes = c.sharing;
  if (codes) {
    args.k = coded_k.data, args.v = coded_v.data, args.scales = scales.data, args.sharing = c.sharing;
    args.scales_of_place = c.scales_of_place, args.value_first = c.value_first;
  }
  Buffer<float> partial(tile_rows ? 0 : size_t(rows) * s.heads * args.chunks * args.partial_stride);
  args.partial = partial.data;
  if (tile_rows) {
    auto kernel = width == 64 ? flash_bf16_64 : flash_bf16_128;
    if (codes) kernel = width == 64 ? flash_fp8_64 : flash_fp8_128;
    LAUNCH(kernel, dim3((rows + tile_rows - 1) / tile_rows, kv_heads), 256, (128 + 256) * width * 2, args);
  } else {
    auto kernel = width == 64 ? flash_split_bf16_64 : flash_split_bf16_128;
    if (codes) kernel = width == 64 ? flash_split_fp8_64 : flash_split_fp8_128;
    LAUNCH(kernel, dim3(rows, kv_heads, args.chunks), 128, (64 + 256) * width * 2, args);
    LAUNCH(flash_merge, dim3(rows, s.heads), 128, 0, args);
  }
  return std::vector<bf16>(out.data, out.data + out.size);
}

inline void attend(Shape shape, int tile_rows, bool codes = false) {
  shape.value_width = shape.width_a;
  std::string name = "flash, heads of " + std::to_string(shape.width_a) + ", group " + std::to_string(shape.group) +
                     ", block " + std::to_string(shape.block_size) + ", window " + std::to_string(shape.window) +
                     (codes ? ", codes" : "");
  Case<bf16> c(shape, shape.block_size + shape.group);
  // The bits are those over a cache with the same numbers.
  if (codes) {
    c.encode(shape.width_a);
    auto coded = run(c, 0, c.rows(), tile_rows);
    c.sharing = 0;
    auto plain = run(c, 0, c.rows(), tile_rows);
    c.sharing = shape.width_a;
    check::test = name.c_str();
    if (memcmp(coded.data(), plain.data(), coded.size() * sizeof(bf16))) check::fail("codes are not their numbers");
  }
  std::vector<bf16> all;
  check::every_order(name, [&] {
    all = run(c, 0, c.rows(), tile_rows);
    return std::string(reinterpret_cast<const char *>(all.data()), all.size() * sizeof(bf16));
  });
  int width = shape.width_a;
  size_t row_size = size_t(shape.heads) * width;
  // Weights are rounded to bf16 before they meet the values.
  for (size_t row = 0; row < c.rows(); row++)
    for (int head = 0; head < shape.heads; head++)
      check::close(&all[row * row_size + head * width], c.expected(row, head), 1e-2);
  auto same = [&](const std::vector<bf16> &got, size_t row, const char *what) {
    if (memcmp(got.data(), &all[row * row_size], got.size() * sizeof(bf16))) check::fail(what);
  };
  same(run(c, 0, c.rows(), 0), 0, "split is not whole");
  same(run(c, 0, c.rows(), 1), 0, "tiles of one row are not tiles of several");
  size_t row = c.rows() - 2;
  same(run(c, row, row + 1, tile_rows), row, "the row depends on the others");
  same(run(c, row, row + 1, 0), row, "the split row depends on the others");
}

inline void test() {
  attend({{1, 2, 70, 64, 65}, 4, 2, 16, 0, 0, 16, 0, false, 3}, 64);
  attend({{300, 513, 9}, 8, 8, 128, 0, 0, 64, 0, false, 20}, 16);
  attend({{530}, 7, 7, 64, 0, 0, 16, 0, false, 40}, 18);        // Queries that do not fill a tile.
  attend({{257, 256, 5}, 2, 1, 72, 0, 0, 16, 0, false, 2}, 128);  // A head that is filled up.
  attend({{600, 3}, 4, 4, 32, 0, 0, 16, 100, false, 30}, 32);     // Windows that begin within a chunk.
  attend({{700}, 2, 2, 80, 0, 0, 8, 256, false, 5}, 64);          // A window of a chunk.
  attend({{270, 20}, 40, 40, 16, 0, 0, 16, 0, false, 2}, 3);      // Several warps for a row.
  attend({{1, 2, 70, 64, 65}, 4, 2, 16, 0, 0, 16, 0, false, 3}, 64, true);
  attend({{300, 513, 9}, 8, 8, 128, 0, 0, 64, 0, false, 20}, 16, true);
  attend({{600, 3}, 4, 2, 72, 0, 0, 16, 100, false, 30}, 64, true);
}

}  // namespace flash_tests
