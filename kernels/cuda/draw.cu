// draw_tokens: draws tokens from logits and finds logprobs, as kernels/src/sample.rs does. stash_logits: copies rows of
// logits to slots, from which later steps draw. Launch draw_tokens before stash_logits: a step's draws may read slots
// that it then overwrites. keep_drawn: brings drawn tokens to another rank. take_drawn: puts them into the next step.
//
// `block` holds all that a step draws, as 32-bit words: the number of tasks, that of stashes, the tasks (DrawTask), the
// stashes (DrawStash), then the lists that the tasks name. logits [rows, vocab] f32 are read alone. slots [any, vocab]
// f32. A task reads a row of either.
//
// draw_tokens: 512 threads; any grid, each block takes every gridDim.x-th task. work: 2 * vocab words for each block.
//   out: at word `out` of each task, the token (NONE: none is allowed), its logprob (f32), its rank, the number of
//   alternatives, then pairs of token and logprob, best first. A task whose `top` is NONE writes the token alone.
//   It also writes the token to tokens[task] and drawn[task.keeps], where these are there.
// stash_logits: 256 threads; grid (any, any): x over columns, y over stashes.
// keep_drawn: one block of 256 threads. parts: the address of rank 0's tokens comes first. drawn as above.
// take_drawn: one block of 256 threads. From word `pairs` of the block on, pairs of a place and a slot: first of ids,
//   then of words of the block. These become the slots' tokens in drawn; 0 where none could be drawn.
//
// The order of processing is that of sample.rs: penalties, bias, mask and bans, temperature, top-k, top-p, min-p, draw.
// Ties go to the lowest id, NaN is never chosen, tokens with +inf share the draw. Ids outside of the vocabulary are
// ignored.
//
// Error: selections are exact. Sums of weights are in f64, in an order that vocab alone fixes, or of integers; so a
// task's result depends on nothing but its inputs. It differs from that of sample.rs where the drawn number or the mass
// of top-p falls within the rounding of such a sum (about 1e-14 of it). Logprobs: f64, rounded to f32.
#include "common.cuh"

// `length` words of the block, from word `at` on.
struct DrawList {
  uint32_t at, length;
};

struct DrawTask {
  uint32_t row, slot;   // slot: NONE: a row of the logits.
  uint32_t token;       // NONE: it is drawn; otherwise its logprob is wanted alone.
  uint32_t top, out;    // The number of alternatives, NONE: no logprobs. The first word of the result.
  uint32_t seed[2];     // The lower half, then the upper one.
  uint32_t position, top_k;
  float temperature, top_p, min_p, repetition, presence, frequency;
  DrawList prompt, generated, bias, banned;  // bias: pairs of id and f32.
  // NONE: prompt and generated are lists of the block. Otherwise of this slot's history, of which `kept` tokens are
  // there and `fresh` are written after them.
  uint32_t history, kept;
  DrawList fresh;
  uint32_t keeps;                            // The slot that keeps the token for the next step, or NONE.
  DrawList mask;                             // `length` bytes; at 0: all tokens are allowed.
};

struct DrawStash {
  uint32_t row, slot;
};

struct DrawArgs {
  const uint32_t *block;
  const float *logits;
  float *slots;
  void *work;
  uint32_t *out;
  uint32_t *histories;  // [slots, history_stride]
  uint32_t *drawn, *tokens;  // By slot, and by task; may be null.
  int vocab, history_stride;
};

struct KeepDrawnArgs {
  const uint32_t *block;
  const uint32_t *const *parts;
  uint32_t *drawn;
};

struct TakeDrawnArgs {
  uint32_t *ids, *block;
  const uint32_t *drawn;
  int pairs, count_ids, count_words;
};

namespace draw {

constexpr int THREADS = 512, WARPS = THREADS / 32, BUCKETS = 256;
constexpr uint32_t LOWEST = 0x007fffff;  // The key of -inf.

// Keys have the order of the logits. NaN has the key of -inf, and -0 that of 0.
DEVICE uint32_t key_of(float logit) {
  if (logit != logit) return LOWEST;
  uint32_t bits = float_bits(logit + 0.0f);
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

DEVICE double logit_of(uint32_t key) {
  union {
    uint32_t bits;
    float value;
  } both = {key & 0x80000000 ? key & 0x7fffffff : ~key};
  return both.value;
}

// e^x for x <= 0: the bits of kernels/src/sample/weights.rs, whose constants these are.
DEVICE double power_of_e(double x) {
  constexpr double LEAST = -708, ROUND = 6755399441055744.0, LOG2_E = 1.4426950408889634, LN2_HIGH = 0x1.62e42feep-1,
                   LN2_LOW = 0x1.a39ef35793c76p-33;
  double within = x > LEAST ? x : LEAST, shifted = fma(within, LOG2_E, ROUND), n = shifted - ROUND;
  double r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, within));
  // 1 / 12!, 1 / 11!, and so on.
  constexpr double TAYLOR[] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                               1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,     1.0 / 6.0,
                               1.0 / 2.0,         1.0,              1.0};
  double power = 1.0 / 6227020800.0;
#pragma unroll
  for (int i = 0; i < 13; i++) power = fma(power, r, TAYLOR[i]);
  union {
    double value;
    uint64_t bits;
  } scale = {shifted};
  scale.bits = (scale.bits << 52) + (uint64_t(1023) << 52);
  return x >= LEAST ? power * scale.value : 0.0;
}

struct Scratch {
  double cells[THREADS], groups[WARPS];
  uint64_t best[WARPS], wanted, amount;
  uint32_t low[BUCKETS], high[BUCKETS];  // The halves of the amount of each bucket.
  uint32_t bucket, found, count;
};

// The first of `count` parts at which the running sum `reached` exceeds the target; if none does, because of rounding,
// the last that is not zero. `reached` becomes the sum before that part.
template <class Part>
DEVICE int crossing(int count, double target, double &reached, Part part) {
  double sum = reached;
  int last = 0;
  for (int i = 0; i < count; i++) {
    double own = part(i);
    if (own > 0) {
      last = i;
      reached = sum;
      if (sum + own > target) break;
    }
    sum += own;
  }
  return last;
}

// The tokens that may be drawn: a bit for each.
struct Mask {
  const uint8_t *bytes;  // Null: all.
  uint32_t length;

  DEVICE bool allows(uint32_t i) const { return !bytes || (i / 8 < length && bytes[i / 8] >> i % 8 & 1); }
};

// The candidates of a row: those that are better than the border (key, id), and the border itself. Better is a larger
// key, then a lower id. All threads of the block call the methods together; each begins with a barrier.
struct Candidates {
  const float *logits;
  Mask mask;
  Scratch *s;
  int n, cell;
  uint32_t key, id;

  DEVICE Candidates(const float *logits, int n, uint32_t least, Scratch *s, Mask mask = {nullptr, 0})
      : logits(logits), mask(mask), s(s), n(n), cell(ceil_div(ceil_div(n, THREADS), 32) * 32), key(least), id(NONE) {}

  DEVICE bool has(uint32_t k, uint32_t i) const { return k > key || (k == key && i <= id); }
  DEVICE uint32_t key_at(uint32_t i) const { return mask.allows(i) ? key_of(logits[i]) : LOWEST; }

  // The best of the row, as its key and the complement of its id.
  DEVICE uint64_t best() {
    __syncthreads();
    uint64_t best = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
      uint64_t own = uint64_t(key_at(i)) << 32 | uint32_t(~i);
      if (own > best) best = own;
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      uint64_t other = shuffle_xor(best, mask);
      if (other > best) best = other;
    }
    if (threadIdx.x % 32 == 0) s->best[threadIdx.x / 32] = best;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
      if (s->best[i] > best) best = s->best[i];
    return best;
  }

  // The sum of value(key, id) over the row: over cells of neighbours, then groups of 32 cells, then all groups.
  template <class Value>
  DEVICE double sum(Value value) {
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int c = warp; c < THREADS; c += WARPS) {
      double own = 0;
      int from = c * cell, to = from + cell < n ? from + cell : n;
      if (from < n) {
        for (int i = from + lane; i < to; i += 32) own += value(key_at(i), i);
        own = warp_sum(own);
      }
      if (lane == 0) s->cells[c] = own;
    }
    __syncthreads();
    double group = warp_sum(s->cells[threadIdx.x]), total = 0;
    if (lane == 0) s->groups[warp] = group;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) total += s->groups[i];
    return total;
  }

  // The id at which the running sum of values, in the order of ids, exceeds the target. Follows sum(value).
  template <class Value>
  DEVICE uint32_t find(Value value, double target) {
    __syncthreads();
    if (threadIdx.x < 32) {
      int lane = threadIdx.x;
      double reached = 0;
      int c = crossing(WARPS, target, reached, [&](int i) { return s->groups[i]; }) * 32;
      c += crossing(32, target, reached, [&](int i) { return s->cells[c + i]; });
      int from = c * cell, to = from + cell < n ? from + cell : n;
      auto own = [&](int row) {
        int i = from + row * 32 + lane;
        return i < to ? value(key_at(i), i) : 0.0;
      };
      int row = crossing(cell / 32, target, reached, [&](int i) { return warp_sum(own(i)); });
      double mine = own(row);
      int found = crossing(32, target, reached, [&](int i) { return shuffle(mine, i); });
      if (lane == 0) s->found = from + row * 32 + found;
    }
    __syncthreads();
    return s->found;
  }

  DEVICE uint64_t bucket_amount(int bucket) const { return uint64_t(s->high[bucket]) << 32 | s->low[bucket]; }

  // Keeps the best candidates until the sum of amount(key) is `wanted`, which is at least 1; all if it is never so.
  // Finds the key digit by digit: each pass adds up the amounts of those that agree in the digits before.
  template <class Amount>
  DEVICE void keep_until(Amount amount, uint64_t wanted) {
    uint32_t prefix = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      __syncthreads();
      if (threadIdx.x == 0 && shift == 24) s->wanted = wanted;
      if (threadIdx.x < BUCKETS) s->low[threadIdx.x] = s->high[threadIdx.x] = 0;
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += THREADS) {
        uint32_t k = key_at(i);
        if (!has(k, i) || ((k ^ prefix) & known)) continue;
        uint64_t own = amount(k);
        uint32_t bucket = k >> shift & 255, low = uint32_t(own), before = atomicAdd(&s->low[bucket], low);
        uint32_t high = uint32_t(own >> 32) + (before + low < before);
        if (high) atomicAdd(&s->high[bucket], high);
      }
      __syncthreads();
      if (threadIdx.x < 32) choose_bucket();
      __syncthreads();
      prefix |= s->bucket << shift;
      known |= 255u << shift;
    }
    // Of the candidates with this key, those with the lowest ids.
    uint64_t each = amount(prefix), ties = s->amount / each, kept = (s->wanted + each - 1) / each;
    uint32_t last = prefix == key ? id : NONE;
    if (kept < ties) {
      auto tie = [&](uint32_t k, uint32_t i) { return k == prefix && has(k, i) ? 1.0 : 0.0; };
      sum(tie);
      last = find(tie, double(kept) - 0.5);
    }
    key = prefix;
    id = last;
  }

  // The bucket, from the last down, in which the sum of amounts reaches `wanted`; `wanted` becomes what is left for it.
  // Each lane of the warp has 8 buckets.
  DEVICE void choose_bucket() {
    int lane = threadIdx.x, bucket = BUCKETS - 1 - lane * 8;
    uint64_t wanted = s->wanted, own = 0;
    for (int i = 0; i < 8; i++) own += bucket_amount(bucket - i);
    uint64_t through = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      uint64_t other = shuffle(through, lane - distance);
      if (lane >= distance) through += other;
    }
    uint64_t total = shuffle(through, 31), before = through - own;
    if (wanted > total) wanted = total;
    if (wanted <= before || wanted > through) return;
    wanted -= before;
    for (; wanted > bucket_amount(bucket); bucket--) wanted -= bucket_amount(bucket);
    s->bucket = bucket;
    s->wanted = wanted;
    s->amount = bucket_amount(bucket);
  }
};

// A uniform number in [0, 1): a number of the splitmix64 stream that the seed selects.
DEVICE double uniform(uint64_t seed, uint32_t position, bool masked) {
  constexpr uint64_t STRIDE = 0x9e3779b97f4a7c15;
  auto mix = [](uint64_t state) {
    uint64_t z = state + STRIDE;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  };
  uint64_t number = uint64_t(position) << 1 | uint64_t(masked);
  return double(mix(mix(seed) + (number - 1) * STRIDE) >> 11) / 9007199254740992.0;
}

// Where the lists of tokens that penalties read begin.
DEVICE const uint32_t *history_of(const DrawTask &task, const DrawArgs &a) {
  if (task.history == NONE) return a.block;
  uint32_t *history = a.histories + size_t(task.history) * a.history_stride;
  for (uint32_t i = threadIdx.x; i < task.fresh.length; i += THREADS)
    history[task.kept + i] = a.block[task.fresh.at + i];
  __syncthreads();
  return history;
}

// Whether some logits change before the draw. Those that a mask excludes are left out where keys are compared.
DEVICE bool changes(const DrawTask &task) {
  return task.history != NONE || task.prompt.length || task.generated.length || task.bias.length || task.banned.length;
}

// Writes the row to `to` with penalties, bias and bans. `counts` [n] is overwritten where a penalty is.
DEVICE void process(const DrawTask &task, const DrawArgs &a, const float *from, float *to, uint32_t *counts) {
  const uint32_t *block = a.block, *history = history_of(task, a);
  const uint32_t *prompt = history + task.prompt.at, *generated = history + task.generated.at;
  const int n = a.vocab;
  // Calls visit(id, index) for the ids of a list that are in the vocabulary.
  auto each = [&](const uint32_t *ids, uint32_t length, auto visit) {
    for (uint32_t i = threadIdx.x; i < length; i += THREADS)
      if (ids[i] < uint32_t(n)) visit(ids[i]);
  };
  auto clear = [&](uint32_t id) { counts[id] = 0; };
  // From the row, not from `to`: an id that is listed twice is penalized once.
  auto penalize = [&](uint32_t id) {
    float logit = from[id];
    logit = logit > 0 ? logit / task.repetition : multiply(logit, task.repetition);
    if (counts[id]) logit -= add(task.presence, multiply(task.frequency, float(counts[id])));
    to[id] = logit;
  };
  for (int i = threadIdx.x; i < n; i += THREADS) to[i] = from[i];
  each(prompt, task.prompt.length, clear);
  each(generated, task.generated.length, clear);
  __syncthreads();
  each(generated, task.generated.length, [&](uint32_t id) { atomicAdd(&counts[id], 1u); });
  __syncthreads();
  each(prompt, task.prompt.length, penalize);
  each(generated, task.generated.length, penalize);
  __syncthreads();
  const uint32_t *bias = block + task.bias.at;
  for (uint32_t i = threadIdx.x; i < task.bias.length / 2; i += THREADS) {
    // The first entry of an id adds all of them, in the order of the list.
    uint32_t id = bias[2 * i], first = 0;
    while (bias[2 * first] != id) first++;
    if (first < i || id >= uint32_t(n)) continue;
    float logit = to[id];
    for (uint32_t j = i; j < task.bias.length / 2; j++)
      if (bias[2 * j] == id) logit += reinterpret_cast<const float *>(bias)[2 * j + 1];
    to[id] = logit;
  }
  __syncthreads();
  each(block + task.banned.at, task.banned.length, [&](uint32_t id) { to[id] = -INFINITY; });
}

// The drawn token, the same for all threads.
DEVICE uint32_t sample(const DrawTask &task, const float *logits, const uint32_t *block, int n, Scratch *s) {
  const uint8_t *mask = task.mask.at ? reinterpret_cast<const uint8_t *>(block + task.mask.at) : nullptr;
  Candidates row(logits, n, LOWEST + 1, s, {mask, task.mask.length});
  uint64_t best = row.best();
  uint32_t top = uint32_t(best >> 32);
  if (top <= LOWEST) return NONE;
  if (task.temperature <= 0) return ~uint32_t(best);
  double largest = logit_of(top), factor = 1.0 / double(task.temperature);
  // Equal keys are compared first, because +inf minus +inf is NaN.
  auto weight = [&](uint32_t key) { return key == top ? 1.0 : power_of_e((logit_of(key) - largest) * factor); };
  if (task.top_k > 0) row.keep_until([](uint32_t) { return uint64_t(1); }, task.top_k);
  if (task.top_p < 1) {
    double total = row.sum([&](uint32_t key, uint32_t id) { return row.has(key, id) ? weight(key) : 0.0; });
    // As integers, whose sums are exact: a power of two of them is more than the total, and their sum below 2^63.
    double unit = scalbn(1.0, 61 - ilogb(total)), mass = ceil((task.top_p > 0 ? task.top_p : 0) * total * unit);
    row.keep_until([&](uint32_t key) { return uint64_t(weight(key) * unit); }, mass > 1 ? uint64_t(mass) : 1);
  }
  double least = task.min_p > 0 ? fminf(task.min_p, 1) : 0;
  auto value = [&](uint32_t key, uint32_t id) {
    double own = row.has(key, id) ? weight(key) : 0.0;
    return own >= least ? own : 0.0;
  };
  double total = row.sum(value);
  return row.find(value, uniform(uint64_t(task.seed[1]) << 32 | task.seed[0], task.position, task.mask.at) * total);
}

// Writes the logprob of `token` and of the `wanted` best tokens. `found` has room for `wanted` ids.
DEVICE void logprobs(const float *logits, int n, uint32_t token, uint32_t wanted, uint32_t *found, uint32_t *out,
                     Scratch *s) {
  Candidates row(logits, n, 0, s);
  uint32_t top = uint32_t(row.best() >> 32), count = wanted < uint32_t(n) ? wanted : n;
  uint32_t own = token < uint32_t(n) ? row.key_at(token) : LOWEST;
  double largest = logit_of(top), log_sum = 0, ahead = 0;
  if (top == LOWEST) {
    count = 0;
  } else {
    log_sum = log(row.sum([&](uint32_t k, uint32_t) { return k == top ? 1.0 : power_of_e(logit_of(k) - largest); }));
    ahead = row.sum([&](uint32_t k, uint32_t i) { return k > own || (k == own && i < token) ? 1.0 : 0.0; });
  }
  auto logprob = [&](uint32_t k) { return float((k == top ? 0.0 : logit_of(k) - largest) - log_sum); };
  if (threadIdx.x == 0) {
    out[0] = float_bits(top == LOWEST ? -INFINITY : logprob(own));
    out[1] = 1 + uint32_t(ahead);
    out[2] = count;
    s->count = 0;
  }
  if (count == 0) return;
  row.keep_until([](uint32_t) { return uint64_t(1); }, count);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += THREADS)
    if (row.has(row.key_at(i), i)) found[atomicAdd(&s->count, 1u)] = i;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
    uint32_t id = found[i], k = row.key_at(id), place = 0;
    for (uint32_t j = 0; j < count; j++) {
      uint32_t other = row.key_at(found[j]);
      place += other > k || (other == k && found[j] < id);
    }
    out[3 + 2 * place] = id;
    out[4 + 2 * place] = float_bits(logprob(k));
  }
}

}  // namespace draw

ENTRY(draw_tokens, (512, 1), DrawArgs) {
  SHARED(draw::Scratch, scratch, 1);
  const DrawTask *tasks = reinterpret_cast<const DrawTask *>(a.block + 2);
  float *processed = static_cast<float *>(a.work) + size_t(blockIdx.x) * 2 * a.vocab;
  uint32_t *counts = reinterpret_cast<uint32_t *>(processed + a.vocab);
  for (uint32_t t = blockIdx.x; t < a.block[0]; t += gridDim.x) {
    const DrawTask &task = tasks[t];
    bool fresh = task.slot == NONE;
    const float *logits = (fresh ? a.logits : a.slots) + size_t(fresh ? task.row : task.slot) * a.vocab;
    uint32_t token = task.token;
    if (token == NONE) {
      bool changes = draw::changes(task);
      if (changes) draw::process(task, a, logits, processed, counts);
      token = draw::sample(task, changes ? processed : logits, a.block, a.vocab, scratch);
    }
    if (threadIdx.x == 0) {
      a.out[task.out] = token;
      if (a.tokens) a.tokens[t] = token;
      if (a.drawn && task.keeps != NONE) a.drawn[task.keeps] = token;
    }
    if (task.top != NONE && token != NONE)
      draw::logprobs(logits, a.vocab, token, task.top, counts, a.out + task.out + 1, scratch);
    __syncthreads();
  }
}

ENTRY(stash_logits, (256), DrawArgs) {
  const DrawTask *tasks = reinterpret_cast<const DrawTask *>(a.block + 2);
  const DrawStash *stashes = reinterpret_cast<const DrawStash *>(tasks + a.block[0]);
  for (uint32_t i = blockIdx.y; i < a.block[1]; i += gridDim.y) {
    const float *from = a.logits + size_t(stashes[i].row) * a.vocab;
    float *to = a.slots + size_t(stashes[i].slot) * a.vocab;
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < a.vocab; c += gridDim.x * blockDim.x) to[c] = from[c];
  }
}

ENTRY(keep_drawn, (256), KeepDrawnArgs) {
  const DrawTask *tasks = reinterpret_cast<const DrawTask *>(a.block + 2);
  const uint32_t *tokens = a.parts[0];
  for (uint32_t t = threadIdx.x; t < a.block[0]; t += blockDim.x)
    if (tasks[t].keeps != NONE) a.drawn[tasks[t].keeps] = tokens[t];
}

ENTRY(take_drawn, (256), TakeDrawnArgs) {
  for (int i = threadIdx.x; i < a.count_ids + a.count_words; i += blockDim.x) {
    const uint32_t *pair = a.block + a.pairs + 2 * i;
    uint32_t token = a.drawn[pair[1]];
    (i < a.count_ids ? a.ids : a.block)[pair[0]] = token == NONE ? 0 : token;
  }
}
