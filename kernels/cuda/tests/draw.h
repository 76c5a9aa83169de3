// draw_tokens and stash_logits against plain loops that follow kernels/src/sample.rs.
#include "check.h"

namespace draw_tests {

using check::Buffer;
using check::Random;

// What a draw takes; the defaults leave all tokens as they are.
struct Spec {
  float temperature = 1, top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
  uint32_t top_k = 0, position = 0, token = NONE, top = NONE, row = 0, slot = NONE;
  uint64_t seed = 0;
  std::vector<uint32_t> prompt, generated, banned;
  std::vector<std::pair<uint32_t, float>> bias;
  bool masked = false;
  std::vector<uint8_t> mask;
};

struct Result {
  uint32_t token = NONE, rank = 0;
  float logprob = 0;
  std::vector<std::pair<uint32_t, float>> top;
};

// ---- The oracle ----

typedef std::pair<uint32_t, float> Candidate;
inline bool better(const Candidate &a, const Candidate &b) {
  return a.second > b.second || (a.second == b.second && a.first < b.first);
}

inline void process(std::vector<float> &logits, const Spec &spec) {
  std::vector<uint32_t> seen = spec.prompt;
  seen.insert(seen.end(), spec.generated.begin(), spec.generated.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (uint32_t id : seen) {
    if (id >= logits.size()) continue;
    float &logit = logits[id];
    if (spec.repetition != 1) logit = logit > 0 ? logit / spec.repetition : logit * spec.repetition;
    auto count = std::count(spec.generated.begin(), spec.generated.end(), id);
    if (count) logit -= spec.presence + spec.frequency * float(count);
  }
  for (auto [id, bias] : spec.bias)
    if (id < logits.size()) logits[id] += bias;
  for (size_t i = 0; i < logits.size(); i++)
    if (spec.masked && (i / 8 >= spec.mask.size() || !(spec.mask[i / 8] >> i % 8 & 1))) logits[i] = -INFINITY;
  for (uint32_t id : spec.banned)
    if (id < logits.size()) logits[id] = -INFINITY;
}

inline double uniform(const Spec &spec) {
  auto mix = [](uint64_t state) { return Random(state).next(); };
  uint64_t number = uint64_t(spec.position) * 2 + spec.masked;
  return std::ldexp(double(mix(mix(spec.seed) + (number - 1) * 0x9e3779b97f4a7c15) >> 11), -53);
}

inline uint32_t sample(std::vector<float> logits, const Spec &spec) {
  process(logits, spec);
  std::vector<Candidate> kept;
  for (size_t i = 0; i < logits.size(); i++)
    if (logits[i] > -INFINITY) kept.push_back({uint32_t(i), logits[i]});
  if (kept.empty()) return NONE;
  std::sort(kept.begin(), kept.end(), better);
  if (spec.temperature <= 0) return kept[0].first;
  double top = kept[0].second;
  auto weight = [&](const Candidate &c) {
    return c.second == top ? 1.0 : std::exp((double(c.second) - top) / double(spec.temperature));
  };
  auto total = [&] {
    double sum = 0;
    for (auto &c : kept) sum += weight(c);
    return sum;
  };
  if (spec.top_k > 0 && spec.top_k < kept.size()) kept.resize(spec.top_k);
  if (spec.top_p < 1) {
    double mass = std::max(spec.top_p, 0.0f) * total(), reached = 0;
    size_t count = 0;
    do reached += weight(kept[count++]);
    while (count < kept.size() && reached < mass);
    kept.resize(count);
  }
  while (spec.min_p > 0 && weight(kept.back()) < std::min(spec.min_p, 1.0f)) kept.pop_back();
  std::sort(kept.begin(), kept.end());
  double target = uniform(spec) * total(), reached = 0;
  for (auto &c : kept)
    if ((reached += weight(c)) > target) return c.first;
  return kept.back().first;
}

inline Result expected(const std::vector<float> &logits, const Spec &spec) {
  Result result;
  result.token = spec.token == NONE ? sample(logits, spec) : spec.token;
  if (result.token == NONE || spec.top == NONE) return result;
  std::vector<Candidate> all;
  for (size_t i = 0; i < logits.size(); i++)
    all.push_back({uint32_t(i), std::isnan(logits[i]) ? -INFINITY : logits[i]});
  Candidate own = {result.token, result.token < all.size() ? all[result.token].second : -INFINITY};
  std::sort(all.begin(), all.end(), better);
  double top = all[0].second, sum = 0;
  result.rank = 1;
  if (top == -INFINITY) {
    result.logprob = -INFINITY;
    return result;
  }
  auto shifted = [&](float l) { return l == top ? 0.0 : double(l) - top; };
  for (auto &c : all) {
    sum += std::exp(shifted(c.second));
    result.rank += better(c, own);
  }
  result.logprob = float(shifted(own.second) - std::log(sum));
  for (size_t i = 0; i < all.size() && i < spec.top; i++)
    result.top.push_back({all[i].first, float(shifted(all[i].second) - std::log(sum))});
  return result;
}

// ---- The kernels ----

inline std::vector<uint32_t> history(const Spec &spec) {
  std::vector<uint32_t> all = spec.prompt;
  all.insert(all.end(), spec.generated.begin(), spec.generated.end());
  return all;
}

// A block as kernels/src/cuda/draw_plan.rs makes it.
struct Block {
  std::vector<uint32_t> words;
  std::vector<DrawTask> tasks;
  uint32_t out = 0;

  DrawList list(const void *from, size_t bytes) {
    DrawList list = {uint32_t(words.size()), uint32_t(bytes / 4)};
    words.resize(words.size() + (bytes + 3) / 4);
    memcpy(words.data() + list.at, from, bytes);
    return list;
  }

  // `keeps`: half of each history is on the device already, in the slot with the number of its task.
  Block(const std::vector<Spec> &specs, const std::vector<DrawStash> &stashes, bool keeps = false) {
    words = {uint32_t(specs.size()), uint32_t(stashes.size())};
    words.resize(2 + specs.size() * sizeof(DrawTask) / 4);
    list(stashes.data(), stashes.size() * sizeof(DrawStash));
    for (const Spec &spec : specs) {
      DrawTask task = {};
      task.row = spec.row, task.slot = spec.slot, task.token = spec.token, task.position = spec.position;
      task.seed[0] = uint32_t(spec.seed), task.seed[1] = spec.seed >> 32;
      task.top_k = spec.top_k, task.temperature = spec.temperature, task.top_p = spec.top_p, task.min_p = spec.min_p;
      task.repetition = spec.repetition, task.presence = spec.presence, task.frequency = spec.frequency;
      task.history = NONE;
      if (keeps) {
        std::vector<uint32_t> all = history(spec);
        task.history = uint32_t(tasks.size()), task.kept = uint32_t(all.size() / 2);
        task.fresh = list(all.data() + task.kept, (all.size() - task.kept) * 4);
        task.prompt = {0, uint32_t(spec.prompt.size())};
        task.generated = {uint32_t(spec.prompt.size()), uint32_t(spec.generated.size())};
      } else {
        task.prompt = list(spec.prompt.data(), spec.prompt.size() * 4);
        task.generated = list(spec.generated.data(), spec.generated.size() * 4);
      }
      task.bias = list(spec.bias.data(), spec.bias.size() * 8);
      task.banned = list(spec.banned.data(), spec.banned.size() * 4);
      if (spec.masked) task.mask = list(spec.mask.data(), spec.mask.size());
      task.mask.length = spec.mask.size();
      task.top = spec.top, task.out = out;
      task.keeps = spec.token == NONE ? uint32_t(specs.size() - 1 - tasks.size()) : NONE;
      out += spec.top == NONE ? 1 : 4 + 2 * spec.top;
      tasks.push_back(task);
    }
    memcpy(words.data() + 2, tasks.data(), tasks.size() * sizeof(DrawTask));
  }
};

inline std::string describe(const Result &r) {
  std::string text = std::to_string(r.token) + " rank " + std::to_string(r.rank) + ", " + std::to_string(r.logprob);
  for (auto &t : r.top) text += "; " + std::to_string(t.first) + " " + std::to_string(t.second);
  return text;
}

inline bool close(float a, float b) { return a == b || std::fabs(a - b) <= 1e-6 * std::max(1.0f, std::fabs(b)); }

inline bool same(const Result &a, const Result &b) {
  if (a.token != b.token || a.rank != b.rank || !close(a.logprob, b.logprob) || a.top.size() != b.top.size())
    return false;
  for (size_t i = 0; i < a.top.size(); i++)
    if (a.top[i].first != b.top[i].first || !close(a.top[i].second, b.top[i].second)) return false;
  return true;
}

// Draws as the specs say from the rows of `logits`, or from slots, which have the rows in descending order.
inline void compare(const std::string &name, const std::vector<std::vector<float>> &rows,
                    const std::vector<Spec> &specs) {
  int vocab = rows[0].size();
  std::vector<float> all;
  for (auto &row : rows) all.insert(all.end(), row.begin(), row.end());
  size_t longest = 1;
  for (const Spec &spec : specs) longest = std::max(longest, history(spec).size());
  auto run = [&](int grid, bool keeps = false) {
    Buffer<float> logits(all), slots(all.size());
    std::vector<DrawStash> stashes;
    for (uint32_t i = 0; i < rows.size(); i++) stashes.push_back({uint32_t(rows.size() - 1 - i), i});
    Block stash_block({}, stashes), block(specs, {}, keeps);
    // What is not kept yet is of another sequence.
    Buffer<uint32_t> histories(std::vector<uint32_t>(specs.size() * longest, 1));
    for (size_t i = 0; i < specs.size() && keeps; i++) {
      std::vector<uint32_t> all = history(specs[i]);
      std::copy(all.begin(), all.begin() + all.size() / 2, histories.data + i * longest);
    }
    Buffer<uint32_t> stash_words(stash_block.words), words(block.words), out(block.out);
    Buffer<uint32_t> work(size_t(grid) * 2 * vocab);
    DrawArgs stash_args = {stash_words.data, logits.data, slots.data, work.data, out.data,
                           nullptr,          nullptr,     nullptr,    vocab,     0};
    LAUNCH(stash_logits, dim3(grid, 2), 256, 0, stash_args);
    const uint32_t unset = 12345;
    Buffer<uint32_t> drawn(std::vector<uint32_t>(specs.size(), unset)), tokens(specs.size());
    DrawArgs args = {words.data,     logits.data, slots.data,  work.data, out.data,
                     histories.data, drawn.data,  tokens.data, vocab,     int(longest)};
    LAUNCH(draw_tokens, grid, draw::THREADS, 0, args);
    // Another rank keeps the same, and the next step has rows and words that await a token beside others.
    Buffer<uint32_t> others(std::vector<uint32_t>(specs.size(), unset)), ids(std::vector<uint32_t>(2 * specs.size(), 7));
    Buffer<const uint32_t *> parts(std::vector<const uint32_t *>{tokens.data});
    KeepDrawnArgs keep = {words.data, parts.data, others.data};
    LAUNCH(keep_drawn, 1, 256, 0, keep);
    std::vector<uint32_t> next(specs.size(), 7);
    for (uint32_t i = 0; i < specs.size(); i++) next.insert(next.end(), {2 * i + 1, i});
    for (uint32_t i = 1; i < specs.size(); i++) next.insert(next.end(), {i, i});
    Buffer<uint32_t> next_words(next);
    TakeDrawnArgs take = {ids.data, next_words.data, others.data, int(specs.size()), int(specs.size()), int(specs.size()) - 1};
    LAUNCH(take_drawn, 1, 256, 0, take);
    for (uint32_t i = 0; i < specs.size(); i++) {
      const auto &task = block.tasks[specs.size() - 1 - i];
      uint32_t want = task.keeps == NONE ? unset : out[task.out], token = want == NONE ? 0 : want;
      if (drawn[i] != want || others[i] != want) check::fail("a slot does not keep its token");
      if (ids[2 * i] != 7 || ids[2 * i + 1] != token) check::fail("a row has not got its token");
      if (next_words[i] != (i == 0 ? 7 : token)) check::fail("a list has not got its token");
    }
    if (memcmp(logits.data, all.data(), all.size() * 4)) check::fail("the logits have changed");
    for (size_t i = 0; i < specs.size(); i++) {
      const Spec &spec = specs[i];
      const uint32_t *at = out.data + block.tasks[i].out;
      Result got, want = expected(rows[spec.slot == NONE ? spec.row : rows.size() - 1 - spec.slot], spec);
      got.token = at[0];
      if (spec.top != NONE && got.token != NONE) {
        auto number = [](uint32_t bits) {
          float x;
          memcpy(&x, &bits, 4);
          return x;
        };
        got.logprob = number(at[1]), got.rank = at[2];
        for (uint32_t t = 0; t < std::min(at[3], spec.top); t++)
          got.top.push_back({at[4 + 2 * t], number(at[5 + 2 * t])});
      }
      if (!same(got, want))
        check::fail("task " + std::to_string(i) + ": " + describe(got) + ", expected " + describe(want));
    }
    return check::bytes(out);
  };
  std::string bytes;
  check::every_order("draw " + name, [&] { return bytes = run(3); });
  if (run(1) != bytes) check::fail("the result depends on the grid");
  if (run(3, true) != bytes) check::fail("the result depends on where the history is");
}

// ---- Cases ----

template <class Change>
Spec with(Change change, Spec spec = {}) {
  change(spec);
  return spec;
}

inline std::vector<Spec> at_positions(const Spec &spec, int count) {
  std::vector<Spec> specs(count, spec);
  for (int i = 0; i < count; i++) specs[i].position = i, specs[i].seed = spec.seed + i / 4;
  return specs;
}

// Filters at ties and borders, over `row`.
inline std::vector<Spec> edges(int vocab) {
  std::vector<Spec> specs;
  auto add = [&](auto change) {
    for (Spec &spec : at_positions(with(change), 2)) specs.push_back(spec);
  };
  add([](Spec &) {});
  add([](Spec &s) { s.temperature = 0, s.top = 3; });
  for (uint32_t k : {1, 2, vocab - 1, vocab, vocab + 7, 1 << 30}) add([=](Spec &s) { s.top_k = k; });
  for (float p : {-1.0f, 0.0f, 1e-30f, 0.3f, 0.5f, 0.999999f, 1.0f, 7.0f}) add([=](Spec &s) { s.top_p = p; });
  for (float p : {1e-6f, 0.5f, 1.0f, 9.0f}) add([=](Spec &s) { s.min_p = p; });
  for (float t : {1e-30f, 1e-3f, 1e30f}) add([=](Spec &s) { s.temperature = t, s.top_p = 0.5f; });
  add([](Spec &s) { s.top_k = 4, s.top_p = 0.5f, s.min_p = 0.1f, s.top = 2; });
  add([](Spec &s) { s.masked = true; });
  add([](Spec &s) { s.masked = true, s.mask = {0}; });
  add([](Spec &s) { s.masked = true, s.mask = {0b10101010}, s.top_k = 2; });
  add([=](Spec &s) { s.masked = true, s.mask.assign(vocab / 8 + 5, 0xff), s.top_p = 0.5f; });
  add([=](Spec &s) {
    for (int i = 0; i < vocab + 3; i += 2) s.banned.push_back(i);
  });
  add([](Spec &s) { s.repetition = 1.3f, s.prompt = {0, 1, 0, 70000}, s.generated = {1, 2, 2}, s.top = 0; });
  add([](Spec &s) { s.presence = 0.7f, s.frequency = 0.3f, s.generated = {3, 3, 0, 3, 1u << 31}, s.top_k = 3; });
  add([](Spec &s) { s.bias = {{1, 0.1f}, {2, INFINITY}, {1, 1e-8f}, {1, 2}, {90000, 1}, {2, -INFINITY}}; });
  for (uint32_t token : {0, 1, vocab - 1, vocab, 1 << 20}) add([=](Spec &s) { s.token = token, s.top = 4; });
  for (uint32_t top : {0, 1, vocab, vocab + 5}) add([=](Spec &s) { s.top = top; });
  return specs;
}

inline std::vector<float> random_row(Random &random, int vocab) {
  std::vector<float> row(vocab);
  int kind = random.below(4);
  for (float &x : row) {
    x = random.number() * 8;
    if (kind == 1) x = std::floor(x / 2);  // Many ties, with -0.
    if (kind == 2 && random.below(20) == 0) x = std::vector<float>{NAN, -INFINITY, INFINITY, -0.0f}[random.below(4)];
    if (kind == 3) x = x * x * 3;
  }
  return row;
}

inline Spec random_spec(Random &random, int vocab, int rows) {
  Spec spec;
  auto sometimes = [&] { return random.below(3) == 0; };
  auto ids = [&](int most) {
    std::vector<uint32_t> all(random.below(most));
    for (auto &id : all) id = random.below(vocab + 3);
    return all;
  };
  spec.seed = random.next(), spec.position = random.below(1000), spec.row = random.below(rows);
  if (sometimes()) spec.slot = random.below(rows);
  if (sometimes()) spec.temperature = std::vector<float>{0, 0.1f, 0.7f, 3}[random.below(4)];
  if (sometimes()) spec.top_k = random.below(vocab + 10);
  if (sometimes()) spec.top_p = std::fabs(random.number());
  if (sometimes()) spec.min_p = std::fabs(random.number()) / 4;
  if (sometimes()) spec.repetition = 1 + random.number() / 2;
  if (sometimes()) spec.presence = random.number(), spec.frequency = random.number();
  if (sometimes()) spec.prompt = ids(40);
  if (sometimes()) spec.generated = ids(40);
  if (sometimes()) spec.banned = ids(vocab);
  if (sometimes())
    for (uint32_t id : ids(30)) spec.bias.push_back({id, random.number() * 3});
  if (sometimes()) {
    spec.masked = true;
    spec.mask.resize(random.below(vocab / 8 + 3));
    for (auto &byte : spec.mask) byte = uint8_t(random.next());
  }
  if (sometimes()) spec.top = random.below(12);
  if (random.below(8) == 0) spec.token = random.below(vocab + 3), spec.top = random.below(5);
  return spec;
}

// The mass of top-p is in a long tail of small weights, and the draws are from that tail: all digits of sums matter.
inline void tail() {
  std::vector<float> row(4000);
  double total = 1, part = 1;
  for (int i = 1; i < 4000; i++) {
    row[i] = -16 - i / 4000.0f;
    total += std::exp(row[i]);
    if (i <= 2000) part += std::exp(row[i]);
  }
  Spec spec;
  spec.top_p = float(part / total);
  std::vector<Spec> specs;
  for (; specs.size() < 4; spec.seed++)
    if (uniform(spec) > 1 - (part - 1) / 2) specs.push_back(spec);
  compare("tail", {row}, specs);
}

// The same numbers as in kernels/src/sample/weights/tests.rs.
inline void exponentials() {
  check::test = "power_of_e";
  const std::pair<double, uint64_t> known[] = {
      {-0.1, 4606325270462671674}, {-1, 4600298746774613816}, {-10.5, 4538748550476374202}, {-700.25, 57128419154484366}};
  for (auto [x, bits] : known) {
    double got = draw::power_of_e(x);
    uint64_t of_got;
    memcpy(&of_got, &got, 8);
    check::equal(of_got, bits, "bits");
  }
}

inline void test() {
  exponentials();
  tail();
  for (float x : {0.0f, -3.5f, INFINITY, -INFINITY, NAN})
    compare("equal " + std::to_string(x), {std::vector<float>(37, x)}, edges(37));
  compare("one of one", {{0.5f}}, edges(1));
  std::vector<float> ties(97), one(33, -INFINITY), steps(1100);
  for (size_t i = 0; i < ties.size(); i++) ties[i] = float(int(i * 7 % 3)) - 1;
  one[20] = -4;
  for (size_t i = 0; i < steps.size(); i++) steps[i] = -float(i % 550) / 50;
  compare("ties", {ties}, edges(97));
  compare("one of 33", {one}, edges(33));
  compare("steps", {steps}, edges(1100));
  compare("zeros", {{-2, -0.0f, 0.0f, -0.0f, -3, 0.0f, -1, -2}}, edges(8));
  compare("extremes", {{3e38f, -3e38f, 1e-45f, -1e-45f, 0.0f, -0.0f, NAN, 1}}, edges(8));
  for (int seed = 0; seed < 12; seed++) {
    Random random(seed);
    int vocab = std::vector<int>{5, 64, 257, 1000, 4099}[random.below(5)], count = 1 + random.below(4);
    std::vector<std::vector<float>> rows;
    std::vector<Spec> specs;
    for (int i = 0; i < count; i++) rows.push_back(random_row(random, vocab));
    for (int i = 0; i < 16; i++) specs.push_back(random_spec(random, vocab, count));
    compare("seed " + std::to_string(seed), rows, specs);
  }
}

}  // namespace draw_tests
