// The gated delta net against plain loops in double, over several sequences in one step, and continued from its cells.
#include "check.h"

namespace delta_tests {

using check::Buffer;
using check::Random;
using check::value;

struct Shape {
  int key_heads, group, key_dim, value_dim, taps;
  int channels() const { return 2 * key_dim + group * value_dim; }
  int inputs() const { return channels() + group * value_dim; }
  int heads() const { return key_heads * group; }
  size_t numbers() const {
    return size_t(taps - 1) * key_heads * channels() + size_t(heads()) * key_dim * value_dim;
  }
};

struct Weights {
  std::vector<float> conv, log_decay, step_bias, norm;
  Weights(const Shape &s, Random &random)
      : conv(random.numbers<float>(size_t(s.key_heads) * s.taps * s.channels())),
        log_decay(random.numbers<float>(s.heads())),
        step_bias(random.numbers<float>(s.heads())),
        norm(random.numbers<float>(s.value_dim)) {}
};

constexpr float EPS = 1e-6f;

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The results of a sequence of `rows` rows.
template <class T>
std::vector<double> expected(const Shape &s, const Weights &w, const std::vector<T> &qkvz, const std::vector<T> &ba,
                             int rows) {
  std::vector<double> out(size_t(rows) * s.heads() * s.value_dim);
  for (int head = 0; head < s.heads(); head++) {
    int of_key = head / s.group, member = head % s.group;
    std::vector<double> state(size_t(s.key_dim) * s.value_dim);
    for (int row = 0; row < rows; row++) {
      auto input = [&](int r, int c) { return value(qkvz, (size_t(r) * s.key_heads + of_key) * s.inputs() + c); };
      auto mixed = [&](int c) {
        double sum = 0;
        for (int back = 0; back < s.taps && back <= row; back++)
          sum += w.conv[(size_t(of_key) * s.taps + s.taps - 1 - back) * s.channels() + c] * input(row - back, c);
        return sum * sigmoid(sum);
      };
      std::vector<double> query(s.key_dim), key(s.key_dim), result(s.value_dim);
      double queries = 1e-6, keys = 1e-6, squares = 0;
      for (int i = 0; i < s.key_dim; i++) {
        query[i] = mixed(i), key[i] = mixed(s.key_dim + i);
        queries += query[i] * query[i], keys += key[i] * key[i];
      }
      size_t gates = (size_t(row) * s.key_heads + of_key) * 2 * s.group + member;
      double beta = sigmoid(value(ba, gates)), step = value(ba, gates + s.group) + w.step_bias[head];
      double decay = std::exp(-std::exp(double(w.log_decay[head])) * std::log1p(std::exp(step)));
      for (int c = 0; c < s.value_dim; c++) {
        double known = 0;
        for (int i = 0; i < s.key_dim; i++) known += state[i * s.value_dim + c] * decay * key[i] / std::sqrt(keys);
        double change = (mixed(2 * s.key_dim + member * s.value_dim + c) - known) * beta;
        for (int i = 0; i < s.key_dim; i++) {
          double &one = state[i * s.value_dim + c];
          one = one * decay + key[i] / std::sqrt(keys) * change;
          result[c] += one * query[i] / std::sqrt(queries * s.key_dim);
        }
        squares += result[c] * result[c];
      }
      for (int c = 0; c < s.value_dim; c++) {
        double gate = input(row, s.channels() + member * s.value_dim + c);
        out[(size_t(row) * s.heads() + head) * s.value_dim + c] =
            result[c] / std::sqrt(squares / s.value_dim + EPS) * w.norm[c] * gate * sigmoid(gate);
      }
    }
  }
  return out;
}

template <class T>
void delta_net(const Shape &s) {
  constexpr int ROWS = 7, CELLS = 4;
  Random random(s.key_dim * 100 + s.value_dim);
  Weights w(s, random);
  auto qkvz = random.numbers<T>(size_t(ROWS) * s.key_heads * s.inputs(), 2);
  auto ba = random.numbers<T>(size_t(ROWS) * 2 * s.heads(), 2);
  std::vector<double> want = expected(s, w, qkvz, ba, ROWS);
  Buffer<float> conv(w.conv), log_decay(w.log_decay), step_bias(w.step_bias), norm(w.norm);
  std::string name = std::string("delta_net_") + check::type_name<T>() + " " + std::to_string(s.key_dim) + " " +
                     std::to_string(s.value_dim);
  check::every_order(name, [&] {
    Buffer<float> states(CELLS * s.numbers());
    std::string bytes;
    // Rows `from` to `to` as one sequence behind another one, the whole, which ends at a cell of its own.
    auto run = [&](int from, int to, std::vector<uint32_t> cells, int begin, bool filled) {
      int rows = ROWS + to - from, sequences = filled ? 3 : 2;
      std::vector<T> x(qkvz), b(ba);
      x.insert(x.end(), qkvz.begin() + qkvz.size() / ROWS * from, qkvz.begin() + qkvz.size() / ROWS * to);
      b.insert(b.end(), ba.begin() + ba.size() / ROWS * from, ba.begin() + ba.size() / ROWS * to);
      Buffer<T> xs(x), bs(b), out(size_t(rows) * s.heads() * s.value_dim);
      Buffer<float> mixed(size_t(rows) * s.key_heads * s.channels());
      std::vector<uint32_t> words = {0, uint32_t(ROWS), uint32_t(rows)};
      if (filled) words.push_back(rows);
      words.insert(words.end(), {NONE, uint32_t(begin), NONE});
      if (filled) words.push_back(NONE);
      words.insert(words.end(), {0, 1, uint32_t(1 + cells.size() / 2)});
      if (filled) words.push_back(1 + cells.size() / 2);
      words.insert(words.end(), {uint32_t(ROWS), CELLS - 1});
      words.insert(words.end(), cells.begin(), cells.end());
      Buffer<uint32_t> places(words);
      DeltaArgs args = {xs.data, bs.data, conv.data, log_decay.data, step_bias.data, norm.data, mixed.data, states.data,
                        out.data, places.data, s.numbers(), rows, sequences, s.key_heads, s.group, s.key_dim,
                        s.value_dim, s.taps, s.key_heads * s.inputs(), 2 * s.heads(), EPS};
      bool wide = sizeof(T) == 4;
      host::launch("delta_mix", dim3(sequences, s.key_heads), 128, 0,
                   [&] { wide ? delta_mix_f32(args) : delta_mix_bf16(args); });
      host::launch("delta_net", dim3(sequences, s.heads()), 128, (2 * s.key_dim + s.value_dim) * 4,
                   [&] { wide ? delta_net_f32(args) : delta_net_bf16(args); });
      size_t width = want.size() / ROWS;
      std::vector<double> both(want);
      both.insert(both.end(), want.begin() + width * from, want.begin() + width * to);
      check::close(out.data, both, 1e-4);
      bytes += check::bytes(out);
    };
    // With a checkpoint on the way; then on from it, and in place from there.
    run(0, 5, {3, 0, 5, 1}, NONE, false);
    run(3, 4, {1, 2}, 0, true);
    run(4, 6, {2, 2}, 2, false);
    run(6, 7, {1, 2}, 2, true);
    return bytes;
  });
}

inline void test() {
  for (Shape s : {Shape{2, 2, 8, 20, 4}, Shape{1, 1, 32, 16, 2}, Shape{2, 1, 16, 160, 3}}) {
    delta_net<float>(s);
    delta_net<bf16>(s);
  }
}

}  // namespace delta_tests
