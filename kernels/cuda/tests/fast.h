// Stand-ins for the kernels of ../fast on the CPU. Those kernels come from libraries that only run on a GPU; these
// compute what gemm.h, int4.h and flashinfer.cu say of them, from the same parameters and tensor maps, and abort
// where a launch or a map is not as they say. So plans, maps, places and parts are tested here, the kernels
// themselves by `rein selftest` on a device.
#pragma once
// After kernels.cu.
#include "../fast/args.h"

namespace fast {

// How a kernel was launched.
struct Launch {
  dim3 grid, threads;
  unsigned shared = 0, cluster = 1;
  bool together = false, overlaps = false;
};

// As the driver counts elements of tensor maps: UINT8, INT32, FLOAT32, BFLOAT16.
enum Numbers { fp8 = 0, words = 3, f32 = 7, bf16_numbers = 9 };
enum Form { dense, batched, grouped };

struct Tile {
  const char *name;
  Numbers x, out;
  Form form;
  int rows, cols, stages, threads, cluster, groups;
};

// gemm.h writes bf16 for the type of numbers.
#define KERNEL(name, x, out, form, ...) {#name, x##_of_map, out##_of_map, form, __VA_ARGS__},
constexpr Numbers fp8_of_map = fp8, bf16_of_map = bf16_numbers, f32_of_map = f32;
inline const Tile TILES[] = {
#include "../fast/gemm.h"
};
#undef KERNEL

[[noreturn]] inline void wrong(const char *kernel, const std::string &what) {
  fprintf(stderr, "%s: %s\n", kernel, what.c_str());
  fflush(stderr);
  _exit(1);
}

inline HostTensorMap host_map(const FastMap &map) {
  HostTensorMap host;
  memcpy(static_cast<void *>(&host), &map, sizeof host);
  return host;
}

inline void expect(const char *kernel, const char *which, const HostTensorMap &map, int element, uint64_t columns, uint64_t rows,
                   bool swizzled, uint64_t matrices = 1) {
  if (map.element != uint64_t(element) || map.box_columns != columns || map.box_rows != rows || map.swizzled != swizzled ||
      map.box_matrices != matrices)
    wrong(kernel, std::string("the map of ") + which + " has boxes of " + std::to_string(map.box_columns) + " x " +
                         std::to_string(map.box_rows) + " of type " + std::to_string(map.element));
}

// A number of a matrix; zero outside of it.
inline float number(const HostTensorMap &map, uint64_t matrix, uint64_t row, uint64_t column) {
  if (matrix >= map.matrices || row >= map.rows || column >= map.columns) return 0;
  const char *at = static_cast<const char *>(map.data) + matrix * map.matrix_stride + row * map.stride;
  if (map.element == fp8) return to_float(e4m3_to_bf16(reinterpret_cast<const uint8_t *>(at)[column]));
  if (map.element == bf16_numbers) return to_float(reinterpret_cast<const bf16 *>(at)[column]);
  return reinterpret_cast<const float *>(at)[column];
}

inline void store(const HostTensorMap &map, uint64_t matrix, uint64_t row, uint64_t column, float value) {
  if (matrix >= map.matrices || row >= map.rows || column >= map.columns) return;
  char *at = static_cast<char *>(const_cast<void *>(map.data)) + matrix * map.matrix_stride + row * map.stride;
  if (map.element == bf16_numbers)
    reinterpret_cast<bf16 *>(at)[column] = to_bf16(value);
  else
    reinterpret_cast<float *>(at)[column] = value;
}

struct Gemm {
  HostTensorMap x, w, out, x_scales;
  const float *w_scales;
  const int *ends;
  uint32_t rows, n, k;
};

// Rows first up to `end` of a matrix; those from `computed` on are zero.
inline void rows_of(const Tile &tile, const Gemm &a, int matrix, int weight, uint32_t first, uint32_t end, uint32_t computed) {
  constexpr uint32_t BLOCK = 128;
  uint32_t blocks = (a.k + BLOCK - 1) / BLOCK, bands = (a.n + BLOCK - 1) / BLOCK;
  std::vector<float> x(a.k);
  for (uint32_t r = first; r < end; r++) {
    for (uint32_t k = 0; k < a.k; k++) x[k] = number(a.x, matrix, r, k);
    for (uint32_t c = 0; c < a.n; c++) {
      float sum = 0;
      for (uint32_t b = 0; b < blocks && r < computed; b++) {
        float part = 0;
        for (uint32_t k = b * BLOCK; k < std::min(a.k, (b + 1) * BLOCK); k++)
          part += x[k] * (tile.form == batched ? number(a.w, matrix, c, k) : number(a.w, 0, uint64_t(weight) * a.n + c, k));
        if (tile.x == fp8)
          part *= number(a.x_scales, 0, b, r) * a.w_scales[(size_t(weight) * bands + c / BLOCK) * blocks + b];
        sum += part;
      }
      store(a.out, matrix, r, c, sum);
    }
  }
}

inline void gemm(const Tile &tile, const Gemm &a, const Launch &launch) {
  if (launch.grid.x != 132 || launch.grid.y != 1 || launch.grid.z != 1 || launch.threads.x != unsigned(128 + tile.threads) ||
      launch.cluster != unsigned(tile.cluster) || launch.together)
    wrong(tile.name, "launched otherwise than gemm.h says");
  int k_columns = tile.x == fp8 ? 128 : 64;
  expect(tile.name, "x", a.x, tile.x, k_columns, tile.rows, true);
  expect(tile.name, "w", a.w, tile.x, k_columns, tile.cols, true);
  expect(tile.name, "out", a.out, tile.out, tile.out == f32 ? tile.cols : std::min(tile.cols, 64), tile.rows, tile.out != f32);
  if (tile.x == fp8) expect(tile.name, "x_scales", a.x_scales, f32, tile.rows, 1, false);
  if (tile.form == grouped && tile.cluster > 1 && a.n % (tile.cols * tile.cluster)) wrong(tile.name, "n is no multiple of a cluster's columns");
  if (tile.form != grouped) {
    for (int matrix = 0; matrix < tile.groups; matrix++) rows_of(tile, a, matrix, 0, 0, a.rows, a.rows);
    return;
  }
  uint32_t at = 0, size = tile.rows;
  for (int g = 0; g < tile.groups; g++) {
    uint32_t end = a.ends[g];
    if (end < at || end > a.rows) wrong(tile.name, "the ends of experts do not ascend");
    uint32_t after = at + (end - at + size - 1) / size * size;
    // A warpgroup multiplies 64 rows, if the first of them is one of the expert's.
    rows_of(tile, a, 0, g, at, after, at + (end - at + 63) / 64 * 64);
    at = after;
  }
}

enum FourBits { INTEGERS, FLOATS };
struct Int4Tile {
  const char *name;
  int rows, stages, n, k, pad;
  FourBits weight;
};
#define KERNEL(name, ...) {#name, __VA_ARGS__},
inline const Int4Tile INT4_TILES[] = {
#include "../fast/int4.h"
};
#undef KERNEL

// Keeps the words in their order: only the kernels know how their layout stores them.
inline void int4_repack(const Int4RepackArgs &a, const Launch &launch) {
  if (launch.grid.x != a.padded_n / 64 || launch.grid.y != a.k / 64 || launch.threads.x != 32 || a.padded_n % 256 ||
      a.padded_n < a.n || a.padded_k != a.k || a.interleaved != 3 || a.zeros)
    wrong("int4_repack", "launched otherwise than int4.h says");
  size_t bytes = size_t(a.n) * a.k / 2;
  memcpy(a.to, a.from, bytes);
  memset(reinterpret_cast<char *>(a.to) + bytes, 0, size_t(a.padded_n - a.n) * a.k / 2);
}

inline void int4_product(const Int4Tile &tile, const Int4Args &a, const Launch &launch) {
  constexpr int EXPERTS = 64, GROUP = 32;
  HostTensorMap x = host_map(a.x), w = host_map(a.w), scales = host_map(a.scales);
  if (launch.grid.y != 1 || launch.threads.x != 384 || launch.cluster != 1 || launch.overlaps || a.long_starts || a.top_k != 1)
    wrong(tile.name, "launched otherwise than int4.h says");
  expect(tile.name, "x", x, bf16_numbers, 64, tile.rows, true);
  expect(tile.name, "w", w, words, 16, 32, false, 4);
  expect(tile.name, "scales", scales, bf16_numbers, 16, 16, false, 2);
  uint64_t n = tile.n, k = tile.k, padded = n + tile.pad, groups = k / GROUP, experts = w.matrices * 16 / k;
  if (w.columns != 16 || w.rows != padded / 8 || w.matrices % (k / 16) || scales.rows != padded / 16 ||
      scales.matrices != experts * groups)
    wrong(tile.name, "maps of another weight");
  constexpr float E2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint64_t g = 0; g < EXPERTS; g++)
    for (int r = a.starts[g]; r < a.starts[g + 1]; r++) {
      if (g >= experts || r >= int(a.rows)) wrong(tile.name, "a row of no expert");
      const uint32_t *weight = static_cast<const uint32_t *>(w.data) + g * padded * k / 8;
      const bf16 *of_groups = static_cast<const bf16 *>(scales.data) + g * padded * groups;
      for (uint64_t c = 0; c < n; c++) {
        // Where the scale of a column is.
        uint64_t at = c / 64 * 64 + c % 8 * 8 + c % 64 / 8;
        float sum = 0;
        for (uint64_t i = 0; i < k; i++) {
          int code = weight[c * k / 8 + i / 8] >> i % 8 * 4 & 15;
          float value = tile.weight == INTEGERS ? code - 8 : code < 8 ? E2M1[code] : -E2M1[code - 8];
          bf16 rounded = to_bf16(value * to_float(of_groups[i / GROUP * padded + at]));
          sum += number(x, 0, r, i) * to_float(rounded);
        }
        static_cast<bf16 *>(a.out)[r * n + c] = to_bf16(sum);
      }
    }
}

// A query over the positions of a piece of work, in the order of flashinfer.cu's contract.
template <class C>
void query(const LatentArgs &a, int work, int row, int head, int packed) {
  constexpr int LATENT = 512, ROPE = 64;
  const bf16 *q = static_cast<const bf16 *>(a.q_latent) + size_t(row) * a.q_latent_stride + head * a.q_latent_head_stride;
  const bf16 *q_rope = static_cast<const bf16 *>(a.q_rope) + size_t(row) * a.q_rope_stride + head * a.q_rope_head_stride;
  int last = a.positions[work] - a.row_count[work] + (row - a.first_row[work]);
  int end = std::min(a.to[work], last + 1);
  std::vector<double> scores;
  std::vector<std::vector<float>> values;
  for (int p = a.from[work]; p < end; p++) {
    size_t block = a.tables[a.first_block[work] + p / a.block_size.by], in_block = p % a.block_size.by;
    const C *stored = static_cast<const C *>(a.latent) + block * a.latent_block_stride + in_block * a.latent_stride;
    const C *rope = static_cast<const C *>(a.rope) + block * a.rope_block_stride + in_block * a.rope_stride;
    const float *scales = a.scales ? a.scales + (block * a.block_size.by + in_block) * (LATENT / 128) : nullptr;
    std::vector<float> latent(LATENT);
    for (int i = 0; i < LATENT; i++) latent[i] = cache::number(stored[i]) * (scales ? scales[i / 128] : 1);
    double score = 0;
    for (int i = 0; i < LATENT; i++) score += double(to_float(q[i])) * latent[i];
    for (int i = 0; i < ROPE; i++) score += double(to_float(q_rope[i])) * cache::number(rope[i]);
    scores.push_back(score * a.scale * M_LOG2E);
    values.push_back(std::move(latent));
  }
  double largest = -INFINITY, total = 0;
  for (double score : scores) largest = std::max(largest, score);
  std::vector<double> sums(LATENT, 0);
  for (size_t i = 0; i < scores.size(); i++) {
    double weight = std::exp2(scores[i] - largest), rounded = to_float(to_bf16(float(weight)));
    total += weight;
    for (int c = 0; c < LATENT; c++) sums[c] += rounded * values[i][c];
  }
  bf16 *out = static_cast<bf16 *>(a.out) + size_t(row) * a.out_stride + head * a.out_head_stride;
  if (a.partial_at[work] >= 0) {
    size_t at = a.partial_at[work] + packed;
    out = static_cast<bf16 *>(a.partial) + at * LATENT;
    a.partial_scale[at] = scores.empty() ? -INFINITY : float(largest + std::log2(total));
  }
  for (int c = 0; c < LATENT; c++) out[c] = to_bf16(scores.empty() ? 0 : float(sums[c] / total));
}

template <class C, size_t SHARED_BYTES>
void latent_attention(const LatentArgs &a, const Launch &launch) {
  const char *name = "latent_attention";
  if (launch.grid.x != 1 || launch.threads.x != 256 || !launch.together || launch.overlaps || launch.shared != SHARED_BYTES)
    wrong(name, "launched otherwise than flashinfer.cu says");
  if (a.heads.by == 0 || 64 % a.heads.by || a.heads.by != a.heads.again) wrong(name, "heads must divide 64");
  for (int x : {1, 63, 64, 1000, INT_MAX})
    for (const FastDivisor &d : {a.heads, a.block_size})
      if ((d.multiplier ? (uint64_t(x) + d.add) * d.multiplier >> 32 >> d.shift : x >> d.shift) != x / d.by)
        wrong(name, "a wrong divisor");
  for (unsigned i = 0; i < launch.grid.y; i++)
    if (a.merge[0][i] != a.merge[1][i]) wrong(name, "something to merge");
  for (unsigned block = 0; block < launch.grid.y; block++)
    for (int work = a.work[block]; work < a.work[block + 1]; work++) {
      int heads = a.heads.by, queries = a.row_count[work] * heads;
      if (a.first_query[work] != 0 || queries > 64 || a.from[work] % 64 || a.to[work] <= a.from[work])
        wrong(name, "a piece of work that is not as flashinfer.cu says");
      for (int i = 0; i < queries; i++) query<C>(a, work, a.first_row[work] + i / heads, i % heads, i);
    }
}

}  // namespace fast
