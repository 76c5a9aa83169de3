// route_f32: chooses experts for each row of scores [rows, experts] f32. Grid: rows; 32 threads; shared memory:
// 2 * experts + groups floats, then experts bytes.
//
// ids, weights [rows, top_k]: the experts with the largest choice values, best first; of equal values the lower id
// first, NaN last. The choice value is the probability (sigmoid or softmax of the scores) plus bias [experts] (may be
// null); the weight is the probability, divided by the sum of the chosen ones if `normalize`, times `scaling`.
// Groups: if groups > 1 and top_groups < groups, only experts of the top_groups groups with the largest sum of their
// two largest choice values are eligible. experts is a multiple of groups; top_k <= experts. Error: expf. Scores nearer
// than that may be chosen in another order than on the CPU.
#include "common.cuh"

struct RouteArgs {
  const float *scores, *bias;
  uint32_t *ids;
  float *weights;
  int experts, top_k, groups, top_groups, sigmoid, normalize;
  float scaling;
};

namespace route {

// Whether candidate (a, i) comes before (b, j).
DEVICE bool before(float a, int i, float b, int j) {
  bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return b_nan;
  if (a_nan || a == b) return i < j;
  return a > b;
}

// The index of the best of `n` values that is not marked in `taken`; the same for all lanes.
DEVICE int best(const float *values, const uint8_t *taken, int n) {
  int lane = threadIdx.x, index = 0x7fffffff;
  float value = 0;
  for (int i = lane; i < n; i += 32)
    if (!taken[i] && (index == 0x7fffffff || before(values[i], i, value, index))) {
      value = values[i];
      index = i;
    }
  for (int mask = 16; mask > 0; mask /= 2) {
    float other = shuffle_xor(value, mask);
    int other_index = shuffle_xor(index, mask);
    if (other_index != 0x7fffffff && (index == 0x7fffffff || before(other, other_index, value, index))) {
      value = other;
      index = other_index;
    }
  }
  return index;
}

DEVICE float warp_max(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}

// Marks candidate i as taken.
DEVICE void take(uint8_t *taken, int i) {
  if (threadIdx.x == 0) taken[i] = 1;
  __syncwarp();
}

// The sum of the two best of `n` values.
DEVICE float two_best(const float *values, int n) {
  int first = -1, second = -1;
  for (int i = 0; i < n; i++) {
    if (first < 0 || before(values[i], i, values[first], first)) {
      second = first;
      first = i;
    } else if (second < 0 || before(values[i], i, values[second], second)) {
      second = i;
    }
  }
  return second < 0 ? values[first] : values[first] + values[second];
}

}  // namespace route

ENTRY(route_f32, (32), RouteArgs) {
  unsigned char *shared = dynamic_shared();
  float *probabilities = reinterpret_cast<float *>(shared), *choice = probabilities + a.experts;
  float *group_values = choice + a.experts;
  uint8_t *taken = reinterpret_cast<uint8_t *>(group_values + a.groups);
  const float *scores = a.scores + size_t(blockIdx.x) * a.experts;
  int lane = threadIdx.x, n = a.experts;

  float largest = -INFINITY, sum = 0;
  for (int i = lane; i < n; i += 32) largest = fmaxf(largest, scores[i]);
  largest = route::warp_max(largest);
  for (int i = lane; i < n; i += 32) {
    probabilities[i] = a.sigmoid ? 1.0f / (1.0f + expf(-scores[i])) : expf(scores[i] - largest);
    sum += probabilities[i];
  }
  sum = a.sigmoid ? 1.0f : warp_sum(sum);
  for (int i = lane; i < n; i += 32) {
    probabilities[i] /= sum;
    choice[i] = a.bias ? probabilities[i] + a.bias[i] : probabilities[i];
    taken[i] = 0;
  }
  __syncwarp();

  if (a.groups > 1 && a.top_groups < a.groups) {
    int size = n / a.groups;
    for (int g = lane; g < a.groups; g += 32) group_values[g] = route::two_best(choice + g * size, size);
    __syncwarp();
    for (int i = 0; i < a.top_groups; i++) route::take(taken, route::best(group_values, taken, a.groups));
    for (int i = lane; i < n; i += 32)
      if (!taken[i / size]) choice[i] = -INFINITY;
    __syncwarp();
    for (int i = lane; i < a.groups; i += 32) taken[i] = 0;
    __syncwarp();
  }

  uint32_t *ids = a.ids + size_t(blockIdx.x) * a.top_k;
  float *weights = a.weights + size_t(blockIdx.x) * a.top_k;
  float total = 0;
  for (int i = 0; i < a.top_k; i++) {
    int expert = route::best(choice, taken, n);
    route::take(taken, expert);
    total += probabilities[expert];
    if (lane == 0) {
      ids[i] = expert;
      weights[i] = probabilities[expert];
    }
  }
  __syncwarp();
  // As on the CPU, so that a row whose weights are all zero has no NaN.
  float divisor = a.normalize ? total + 1e-20f : 1.0f;
  for (int i = lane; i < a.top_k; i += 32) weights[i] = weights[i] / divisor * a.scaling;
}
