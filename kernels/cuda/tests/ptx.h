// The host bodies of ptx.cuh against plain loops, and the values that a device must give (ptx_test.cu).
#include "check.h"

namespace ptx_tests {

using check::Buffer;

constexpr int PTX_SHARED = 32 << 10, PTX_INPUT = 32 << 10;

struct Run {
  const char *name;
  void (*kernel)(PtxArgs);
  int words;            // Of out, per thread.
  const char *minimum;  // Compute capability, times 10; 90a: exactly 9.0.
};

inline const Run RUNS[] = {
    {"ptx_bf16", ptx_bf16, 2, "80"},
    {"ptx_shuffle", ptx_shuffle, 6, "80"},
    {"ptx_named_barrier", ptx_named_barrier, 3, "80"},
    {"ptx_ldmatrix", ptx_ldmatrix, 8, "80"},
    {"ptx_copy_async", ptx_copy_async, 12, "80"},
    {"ptx_mma", ptx_mma, 4, "80"},
    {"ptx_bulk_copy", ptx_bulk_copy, 12, "90"},
    {"ptx_tensor_copy", ptx_tensor_copy, 32, "90"},
    {"ptx_wgmma_64", ptx_wgmma_64, 32, "90a"},
    {"ptx_wgmma_128", ptx_wgmma_128, 64, "90a"},
    {"ptx_pairs", ptx_pairs, 3, "80"},
};

inline std::vector<unsigned char> input() {
  std::vector<unsigned char> in(PTX_INPUT);
  for (int i = 0; i < PTX_INPUT; i++) in[i] = (unsigned char)(i * 7 + i / 251);
  return in;
}

inline std::vector<uint32_t> result(const Run &run) {
  Buffer<unsigned char> in(input());
  Buffer<uint32_t> out(run.words * 128);
  PtxArgs args = {host_tensor_map({in.data, 100, 96, 192, 64}), in.data, out.data};
  host::launch(run.name, 1, 128, PTX_SHARED, [&] { run.kernel(args); });
  return std::vector<uint32_t>(out.data, out.data + out.size);
}

// The number that ptx_test::small gives, without bf16.
inline int small(int i) { return i * 5 % 17 - 8; }

inline float real(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t word(const std::vector<unsigned char> &in, size_t at) {
  uint32_t x;
  memcpy(&x, &in[at], 4);
  return x;
}

inline void shuffles() {
  auto out = result(RUNS[1]);
  for (uint32_t i = 0; i < 128; i++) {
    uint32_t warp = i / 32 * 32, lane = i % 32, every_third = 0;
    for (uint32_t l = 0; l < 32; l++) every_third |= uint32_t((warp + l) % 3 == 0) << l;
    check::equal(out[i * 6], (warp + i * 5 % 32) * 3, "shuffle");
    check::equal(out[i * 6 + 1], (warp + (lane ^ 9)) * 3, "shuffle_xor");
    check::equal(out[i * 6 + 2], (lane + 7 < 32 ? i + 7 : i) * 3, "shuffle_down");
    check::equal(out[i * 6 + 3], every_third, "warp_ballot");
    check::equal(out[i * 6 + 4], __builtin_popcount(every_third), "count_bits");
    check::equal(out[i * 6 + 5], uint32_t((0x0123456789abcdefull * (i ^ 1)) >> 32), "shuffle_xor of 64 bits");
  }
}

// Register m of lane i: numbers i % 4 * 2 and the next of row i / 4, or of column i / 4, of matrix m.
inline void matrices() {
  auto out = result(RUNS[3]);
  for (int i = 0; i < 128; i++)
    for (int m = 0; m < 4; m++)
      for (int e = 0; e < 2; e++) {
        int warp = i / 32, major = i % 32 / 4, minor = i % 4 * 2 + e;
        auto number = [&](int row, int column) { return uint16_t(((warp * 32 + m * 8 + row) * 24 + column) * 3); };
        check::equal(out[i * 8 + m] >> 16 * e & 0xffff, number(major, minor), "ldmatrix");
        check::equal(out[i * 8 + 4 + m] >> 16 * e & 0xffff, number(minor, major), "ldmatrix, transposed");
      }
}

inline void pairs() {
  auto out = result(RUNS[10]);
  for (int i = 0; i < 128; i++)
    for (int half = 0; half < 2; half++) {
      int code = half ? i * 37 & 127 : i, exponent = code >> 3, mantissa = code & 7;
      double number = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
      auto got = [&](int word) { return real(out[i * 3 + word] >> half * 16 << 16); };
      check::equal(got(0) == (i >> half & 1 ? -number : number), 1, "fma_bf16x2 of a small number");
      check::equal(got(1) == (half ? i >> 3 : i & 15) - 8, 1, "fma_bf16x2 of integers");
      uint16_t some = uint32_t(i) * 0x9e3779b9u >> half * 16;
      check::equal(uint16_t(out[i * 3 + 2] >> half * 16), (some & 15) | 0x4300, "and_or");
    }
}

inline void copies() {
  auto in = input();
  auto out = result(RUNS[4]);
  for (int i = 0; i < 128; i++)
    for (int w = 0; w < 12; w++) {
      int at = (w * 128 + i) * 4, chunk = at / 16, valid = chunk / 128 == 1 ? chunk % 128 % 17 : 16;
      uint32_t want = 0;
      for (int b = 0; b < 4; b++)
        if (at % 16 + b < valid) want |= uint32_t(in[at + b]) << 8 * b;
      check::equal(out[i * 12 + w], want, "copy_async_16");
    }
  out = result(RUNS[6]);
  for (int i = 0; i < 12 * 128; i++) {
    int round = i / 512, word_in_round = i % 512;
    int from = round * 4096 + (word_in_round < 256 ? word_in_round * 4 : 2064 + (word_in_round - 256) * 4);
    check::equal(out[i], word(in, from), "bulk_copy");
  }
  out = result(RUNS[7]);
  for (int box = 0; box < 2; box++)
    for (int r = 0; r < 64; r++)
      for (int c = 0; c < 64; c += 2) {
        int row = (box ? 64 : 5) + r, column = (box ? 64 : 16) + c;
        uint32_t want = row < 100 && column < 96 ? word(in, row * 192 + column * 2) : 0;
        // The 16-byte chunks of a row are permuted by the row's number.
        int place = box * 8192 + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2;
        check::equal(out[place / 4], want, "tensor_copy");
      }
}

inline void products() {
  auto out = result(RUNS[5]);
  for (int warp = 0; warp < 4; warp++) {
    // The fragments as the PTX ISA draws them.
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
      int i = warp * 32 + lane, g = lane / 4, t = lane % 4;
      for (int e = 0; e < 8; e++) {
        int row = e / 2 % 2 == 0 ? g : g + 8, column = t * 2 + e % 2 + (e < 4 ? 0 : 8);
        a[row][column] = small(i * 8 + e);
      }
      for (int e = 0; e < 4; e++) b[t * 2 + e % 2 + (e < 2 ? 0 : 8)][g] = small(i * 4 + e + 3);
    }
    for (int lane = 0; lane < 32; lane++)
      for (int e = 0; e < 4; e++) {
        int i = warp * 32 + lane, row = lane / 4 + (e < 2 ? 0 : 8), column = lane % 4 * 2 + e % 2;
        float want = e == 0 ? i : e + 1;
        for (int k = 0; k < 16; k++) want += 2 * a[row][k] * b[k][column];
        if (real(out[i * 4 + e]) != want) check::fail("mma_m16n8k16");
      }
  }
  for (int n : {64, 128}) {
    out = result(RUNS[n == 64 ? 8 : 9]);
    for (int i = 0; i < 128; i++)
      for (int e = 0; e < n / 2; e++) {
        int row = i / 32 * 16 + i % 32 / 4 + (e % 4 < 2 ? 0 : 8), column = e / 4 * 8 + i % 4 * 2 + e % 2;
        float want = e;
        for (int k = 0; k < 64; k++) want += small(row * 64 + k + row * 3) * small(column * 64 + k + column * 11);
        if (real(out[i * (n / 2) + e]) != want) check::fail("wgmma, n = " + std::to_string(n));
      }
  }
}

inline void test() {
  for (const Run &run : RUNS)
    check::every_order(run.name, [&] {
      auto out = result(run);
      return std::string(reinterpret_cast<const char *>(out.data()), out.size() * 4);
    });
  check::test = "ptx";
  shuffles();
  matrices();
  copies();
  products();
  pairs();
}

// What a device must give: for each kernel a line with its name, least compute capability and number of words, then the
// words in hexadecimal.
inline void write_expected(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) {
    perror(path);
    exit(1);
  }
  for (const Run &run : RUNS) {
    auto out = result(run);
    fprintf(file, "%s %s %zu\n", run.name, run.minimum, out.size());
    for (size_t i = 0; i < out.size(); i++) fprintf(file, "%08x%c", out[i], i % 16 == 15 ? '\n' : ' ');
  }
  if (fclose(file)) {
    perror(path);
    exit(1);
  }
}

}  // namespace ptx_tests
