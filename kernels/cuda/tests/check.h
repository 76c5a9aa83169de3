// What the tests of kernels share: guarded buffers, random numbers, one tolerance, and every thread order.
#pragma once
#include <algorithm>
#include <memory>

#include "../kernels.cu"

namespace check {

inline const char *test = "";  // For messages.
inline int failures = 0;

inline void fail(const std::string &what) {
  fprintf(stderr, "FAIL %s: %s\n", test, what.c_str());
  failures++;
}

// Device memory. It is filled with poison, and an access beyond its ends aborts.
template <class T>
struct Buffer {
  size_t size;
  T *data;
  explicit Buffer(size_t size) : size(size), data(static_cast<T *>(host::allocate(size * sizeof(T)))) {}
  Buffer(const std::vector<T> &values) : Buffer(values.size()) {
    if (size) memcpy(static_cast<void *>(data), values.data(), size * sizeof(T));
  }
  Buffer(const Buffer &) = delete;
  ~Buffer() { host::release(data, size * sizeof(T)); }
  T &operator[](size_t i) { return data[i]; }
  const T &operator[](size_t i) const { return data[i]; }
};

struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  int below(int n) { return int(next() % n); }
  float number() { return float(next() >> 40) / float(1 << 23) - 1; }  // From -1 to 1.
  template <class T>
  std::vector<T> numbers(size_t n, float scale = 1) {
    std::vector<T> all(n);
    for (T &x : all) x = from_float<T>(number() * scale);
    return all;
  }
  // Distinct numbers below n, in random order.
  std::vector<uint32_t> distinct(int count, int n) {
    std::vector<uint32_t> all(n);
    for (int i = 0; i < n; i++) all[i] = i;
    for (int i = 0; i < count; i++) std::swap(all[i], all[i + below(n - i)]);
    all.resize(count);
    return all;
  }
};

constexpr double F32_SUMS = 1e-5;

// Each difference is at most `tolerance` of the root mean square of `want`, plus the rounding of the number to T.
template <class T>
void close(const T *got, const std::vector<double> &want, double tolerance = F32_SUMS) {
  double squares = 0;
  for (double w : want) squares += w * w;
  double rms = std::sqrt(squares / std::max<size_t>(1, want.size()));
  for (size_t i = 0; i < want.size(); i++) {
    double rounding = sizeof(T) == 2 && tolerance > 0 ? std::fabs(want[i]) / 256 : 0;
    if (std::fabs(double(to_float(got[i])) - want[i]) <= tolerance * rms + rounding) continue;
    fail("number " + std::to_string(i) + " is " + std::to_string(to_float(got[i])) + ", expected " +
         std::to_string(want[i]));
    return;
  }
}

inline void equal(uint64_t got, uint64_t want, const char *what) {
  if (got != want) fail(std::string(what) + ": " + std::to_string(got) + ", expected " + std::to_string(want));
}

// Calls `run` in every order of threads. It returns the bytes of the kernel's outputs, which must be the same.
inline void every_order(const std::string &name, const std::function<std::string()> &run) {
  std::string first;
  test = name.c_str();
  for (host::Order order : {host::Order::Forward, host::Order::Reverse, host::Order::Scattered}) {
    host::order = order;
    std::string bytes = run();
    if (order == host::Order::Forward) first = bytes;
    if (bytes != first) fail("the result depends on the order of threads: a barrier is missing");
  }
  host::order = host::Order::Forward;
}

template <class T>
std::string bytes(const Buffer<T> &x) {
  return std::string(reinterpret_cast<const char *>(x.data), x.size * sizeof(T));
}

template <class T>
double value(const std::vector<T> &x, size_t i) {
  return to_float(x[i]);
}

template <class T>
const char *type_name() {
  return sizeof(T) == 4 ? "f32" : "bf16";
}

}  // namespace check

#define LAUNCH(kernel, grid, threads, shared, args) host::launch(#kernel, grid, threads, shared, [&] { kernel(args); })
