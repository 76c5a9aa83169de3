// The experts of a rank, from routes: count, align, two grouped products (linear.cu) with silu_mul between, combine.
//
// moe_count: counts [held] = routes of each held expert. Grid: held.
// moe_align: starts [held + 1] = running sums of counts; order [routes] = the routes of expert 0, those of expert 1 and
//   so on, each in ascending order. Route r is choice r % top_k of row r / top_k. Routes to experts that are not held
//   are left out. Grid: held + 1; block held writes the end of starts.
//   held_ids [held] are the global ids of the held experts; ids [routes] are those that `route` chose.
//   Rows whose token (tokens [rows]; null: all have one) is NONE have no routes.
// moe_place: places for the routes of moe_align, as grouped products of the fast tier (fast/gemm.h) need them: the
//   experts' places begin at multiples of `tile`, in the order of their slots. routes [room] = the route at each place,
//   NONE between; begins [groups + 1] = the first place of each expert, then the end of all; ends [groups] = the place
//   after each expert's last one; places [routes] = the place of each route that has one. The experts from held to
//   groups have none. counts, starts and order as above. Grid: held + 1; block held writes what follows the last one.
// moe_place_few: the same from ids and held_ids alone, for at most 2048 routes. One block.
// moe_combine: out [rows, n] f32 = the sum of weights[r] * parts[r] over the row's routes r, in ascending order of
//   their expert's id, plus shared [rows, n] T (may be null). parts [routes, n] T, or with places (may be null) [room,
//   n] by place. Routes whose expert is not held are left out (held [experts] is 0; null: all are held). So the order
//   of sums does not depend on which rank has which expert. Rows without a token get zeros. Grid: (rows, ceil(n /
//   256)). top_k <= 64.
//
// Any sizes. Exact, but for moe_combine: f32 sums.
#pragma once
#include "common.cuh"

struct MoeAlignArgs {
  const uint32_t *ids, *held_ids, *tokens;
  uint32_t *counts, *starts, *order;
  int routes, held, top_k;
};

struct MoePlaces {
  uint32_t *routes, *ends, *begins, *places;
  int held, groups, tile, room;
};

struct MoePlaceArgs {
  const uint32_t *counts, *starts, *order;
  MoePlaces to;
};

struct MoePlaceFewArgs {
  const uint32_t *ids, *held_ids, *tokens;
  MoePlaces to;
  int routes, top_k;
};

struct MoeCombineArgs {
  const void *parts, *shared;
  const uint32_t *ids, *held, *tokens, *places;
  const float *weights;
  float *out;
  int n, top_k;
};

namespace moe {

// Whether a route goes to an expert.
DEVICE bool goes_to(const MoeAlignArgs &a, int route, uint32_t id) {
  return a.ids[route] == id && (!a.tokens || a.tokens[route / a.top_k] != NONE);
}

// The places of a row's routes in ascending order of their expert's id. sorted has 64 numbers. Ends with a barrier.
DEVICE void sort_routes(const uint32_t *ids, int top_k, uint32_t *sorted) {
  // The place of each route: the number of routes with a smaller expert, or with the same one before it.
  if (int(threadIdx.x) < top_k) {
    int mine = threadIdx.x, place = 0;
    for (int i = 0; i < top_k; i++) place += ids[i] < ids[mine] || (ids[i] == ids[mine] && i < mine);
    sorted[place] = mine;
  }
  __syncthreads();
}

}  // namespace moe

ENTRY(moe_count, (256), MoeAlignArgs) {
  SHARED(uint32_t, total, 1);
  if (threadIdx.x == 0) *total = 0;
  __syncthreads();
  uint32_t own = 0, id = a.held_ids[blockIdx.x];
  for (int i = threadIdx.x; i < a.routes; i += 256) own += moe::goes_to(a, i, id);
  if (own) atomicAdd(total, own);
  __syncthreads();
  if (threadIdx.x == 0) a.counts[blockIdx.x] = *total;
}

ENTRY(moe_align, (256), MoeAlignArgs) {
  SHARED(uint32_t, warps, 8);
  SHARED(uint32_t, before, 1);
  int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) *before = 0;
  __syncthreads();
  uint32_t own = 0;
  for (int i = threadIdx.x; i < expert; i += 256) own += a.counts[i];
  if (own) atomicAdd(before, own);
  __syncthreads();
  uint32_t at = *before;
  if (threadIdx.x == 0) a.starts[expert] = at;
  if (expert == a.held || a.counts[expert] == 0) return;
  // Each warp has a part of the routes, 32 at a time: first it counts those of the expert, then it places them.
  uint32_t id = a.held_ids[expert];
  int part = ceil_div(a.routes, 8 * 32) * 32, from = warp * part, to = from + part < a.routes ? from + part : a.routes;
  uint32_t count = 0;
  for (int route = from + lane; route < to; route += 32) count += moe::goes_to(a, route, id);
  count = warp_sum(count);
  if (lane == 0) warps[warp] = count;
  __syncthreads();
  for (int w = 0; w < warp; w++) at += warps[w];
  for (int first = from; first < to; first += 32) {
    int route = first + lane;
    bool mine = route < to && moe::goes_to(a, route, id);
    uint32_t lanes = warp_ballot(mine);
    if (mine) a.order[at + count_bits(lanes & ((1u << lane) - 1))] = route;
    at += count_bits(lanes);
  }
}

ENTRY(moe_place, (256), MoePlaceArgs) {
  SHARED(uint32_t, before, 1);
  const MoePlaces &to = a.to;
  int expert = blockIdx.x;
  if (threadIdx.x == 0) *before = 0;
  __syncthreads();
  uint32_t own = 0;
  for (int i = threadIdx.x; i < expert; i += 256) own += ceil_div(a.counts[i], to.tile) * to.tile;
  if (own) atomicAdd(before, own);
  __syncthreads();
  int at = *before;
  if (expert == to.held) {
    for (int i = expert + threadIdx.x; i <= to.groups; i += 256) to.begins[i] = at;
    for (int i = expert + threadIdx.x; i < to.groups; i += 256) to.ends[i] = at;
    for (int i = at + threadIdx.x; i < to.room; i += 256) to.routes[i] = NONE;
    return;
  }
  int count = a.counts[expert], places = ceil_div(count, to.tile) * to.tile;
  const uint32_t *order = a.order + a.starts[expert];
  if (threadIdx.x == 0) {
    to.begins[expert] = at;
    to.ends[expert] = at + count;
  }
  for (int i = threadIdx.x; i < places; i += 256) {
    to.routes[at + i] = i < count ? order[i] : NONE;
    if (i < count) to.places[order[i]] = at + i;
  }
}

ENTRY(moe_place_few, (256), MoePlaceFewArgs) {
  using Four = Several<uint32_t, 4>;
  constexpr int MOST = 2048 / 4;
  SHARED(Four, ids, MOST);
  SHARED(uint32_t, warps, 8);
  const MoePlaces &to = a.to;
  int fours = ceil_div(a.routes, 4), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < 4 * fours; i += 256) {
    bool goes = i < a.routes && (!a.tokens || a.tokens[i / a.top_k] != NONE);
    ids[i / 4].of[i % 4] = goes ? a.ids[i] : NONE;
  }
  __syncthreads();
  int at = 0;
  // A thread has an expert, and reads all routes.
  for (int first = 0; first < to.groups; first += 256) {
    int expert = first + threadIdx.x, count = 0;
    uint32_t id = expert < to.held ? a.held_ids[expert] : NONE;
    auto visit = [&](auto each) {
      for (int i = 0; i < fours && id != NONE; i++) {
        Four several = ids[i];
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (several.of[j] == id) each(4 * i + j);
      }
    };
    visit([&](int) { count++; });
    int places = ceil_div(count, to.tile) * to.tile, through = places;
    for (int distance = 1; distance < 32; distance *= 2) {
      int other = shuffle(through, (lane - distance) & 31);
      if (lane >= distance) through += other;
    }
    if (lane == 31) warps[warp] = through;
    __syncthreads();
    int place = at + through - places;
    for (int w = 0; w < 8; w++) {
      if (w < warp) place += warps[w];
      at += warps[w];
    }
    if (expert < to.groups) {
      to.begins[expert] = place;
      to.ends[expert] = place + count;
    }
    int end = place + places;
    if (count > 0) {
      visit([&](int route) {
        to.routes[place] = route;
        to.places[route] = place++;
      });
    }
    while (place < end) to.routes[place++] = NONE;
    __syncthreads();
  }
  if (threadIdx.x == 0) to.begins[to.groups] = at;
  for (int i = at + threadIdx.x; i < to.room; i += 256) to.routes[i] = NONE;
}

template <class T>
DEVICE void moe_combine(const MoeCombineArgs &a) {
  SHARED(uint32_t, sorted, 64);
  size_t row = blockIdx.x;
  const uint32_t *ids = a.ids + row * a.top_k;
  const float *weights = a.weights + row * a.top_k;
  moe::sort_routes(ids, a.top_k, sorted);
  int column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= a.n) return;
  float sum = 0;
  if (a.tokens && a.tokens[row] == NONE) {
    a.out[row * a.n + column] = sum;
    return;
  }
  for (int i = 0; i < a.top_k; i++) {
    int route = sorted[i];
    if (a.held && !a.held[ids[route]]) continue;
    size_t part = row * a.top_k + route;
    if (a.places) part = a.places[part];
    sum += weights[route] * to_float(static_cast<const T *>(a.parts)[part * a.n + column]);
  }
  if (a.shared) sum += to_float(static_cast<const T *>(a.shared)[row * a.n + column]);
  a.out[row * a.n + column] = sum;
}

ENTRY(moe_combine_f32, (256), MoeCombineArgs) { moe_combine<float>(a); }
ENTRY(moe_combine_bf16, (256), MoeCombineArgs) { moe_combine<bf16>(a); }
