// What ranks exchange, and what is computed from the parts of all ranks. A table has an address for each rank: where
// its part begins for this rank. A part whose address is null, because the group has ended, counts as zeros.
//
// meet_ranks: one block of 64 threads. Tells every rank of this process where this rank's data is, and waits until all
//   have told theirs; or until `aborted` is not 0, after which the table has nulls. Work that a rank's stream did
//   before is visible to the others after. boxes [ranks] are the ranks' letter boxes; each has [2][ranks] letters, of
//   even and of odd rounds: a rank writes letters of round n + 2 after all have read those of round n.
//   table [2][ranks] = what each rank offers, plus `offsets`. An offer of null stays null.
// write_table: the same table, of addresses that the host knows.
//   Both count the exchanges of this rank at `count`, and tell the host at `passed`.
// sum_ranks: out [n] f32 = the parts [n] T added in rank order. Grid: ceil(n / 256).
// add_norm_ranks: add_norm (norm.cu), with y = the parts [rows, n] Y added in rank order.
// join_rows: out [rows, n] f32, of which rank r has rows rows * r / ranks to rows * (r + 1) / ranks.
//   Grid: (rows, ceil(n / 256)).
// join_columns: out [rows, n] f32, of which rank r has columns starts[r] to starts[r + 1], as a matrix of its own.
//   Grid: (rows, ceil(n / 256)).
// moe_dispatch: which rank computes each route [routes], as `ExpertTable::holder` says; NONE for rows without a token.
//   mine [routes] = the expert of a route of this rank, else OTHER_RANK. holders [experts][1 + ranks]: the number of
//   ranks that hold the expert, then these ranks. counts [experts] (may be null) += routes. Grid: ceil(routes / 256).
// moe_slots: the places of parts when each rank packs those of its routes. slots [routes] = the number of earlier
//   routes of the same rank. starts [ranks][ranks + 1] = for each rank the slots at which the ranks' shares of the rows
//   begin (those of join_rows), then the number of its routes. Grid: ranks; 256 threads.
// moe_pack: packed [routes of this rank, n] T at slots [routes] = parts [routes, n] T. Grid: (routes, ceil(n / 256)).
// moe_combine_ranks: moe_combine (moe.cu) for some rows: the parts of each route are those of its rank, the parts of
//   `shared` (may be null) are added in rank order. parts and shared are tables whose addresses are those of row
//   `first`. With slots (may be null), parts are packed, and begin with this rank's share. Grid: (rows, ceil(n / 256)).
//
// Any sizes. Exact, but for the f32 sums.
#include "moe.cu"
#include "norm.cu"

constexpr int MAX_RANKS = 64;
constexpr uint32_t OTHER_RANK = 0xfffffffe;

struct RankLetter {
  uint64_t offers[2];
  uint32_t round, unused;
};

struct MeetArgs {
  RankLetter *const *boxes;
  uint32_t *round;
  const uint32_t *aborted;
  uint64_t *table;
  uint64_t offers[2], offsets[2];
  uint32_t *count, *passed;
  int rank, ranks;
};

struct WriteTableArgs {
  uint64_t *table;
  uint64_t addresses[2][MAX_RANKS];
  uint32_t *count, *passed;
  int ranks;
};

struct SumRanksArgs {
  const void *const *parts;
  float *out;
  size_t n;
  int ranks;
};

struct AddNormRanksArgs {
  float *x;
  const void *const *parts;
  const float *weight;
  void *out;
  Codes to;
  int n, ranks;
  float factor, eps;
};

struct JoinRowsArgs {
  const float *const *parts;
  float *out;
  int rows, n, ranks;
};

struct JoinColumnsArgs {
  const float *const *parts;
  const uint32_t *starts;
  float *out;
  int n, ranks;
};

struct MoeDispatchArgs {
  const uint32_t *ids, *tokens, *positions, *holders;
  uint32_t *ranks_of, *mine;
  unsigned long long *counts;
  int routes, top_k, rank, ranks;
};

struct MoeSlotsArgs {
  const uint32_t *ranks_of;
  uint32_t *slots, *starts;
  int rows, top_k, ranks;
};

struct MoePackArgs {
  const void *parts;
  const uint32_t *ranks_of, *slots;
  void *packed;
  int n, rank;
};

struct MoeCombineRanksArgs {
  const void *const *parts, *const *shared;
  const uint32_t *ids, *ranks_of, *tokens, *slots, *starts;
  const float *weights;
  float *out;
  int first, n, top_k, rank, ranks;
};

namespace ranks {

DEVICE const RankLetter *letter_from(const MeetArgs &a, int rank, uint32_t round) {
  return a.boxes[a.rank] + (round & 1) * a.ranks + rank;
}

// Tells one rank what this rank offers.
DEVICE void post(const MeetArgs &a, int rank, uint32_t round) {
  RankLetter *letter = a.boxes[rank] + (round & 1) * a.ranks + a.rank;
  for (int i = 0; i < 2; i++) letter->offers[i] = a.offers[i];
  store_release_system(&letter->round, round);
}

DEVICE bool has_come(const MeetArgs &a, int rank, uint32_t round) {
  return load_acquire_system(&letter_from(a, rank, round)->round) == round;
}

// One thread does it once the table is there. The host polls, so nothing has to be in order.
DEVICE void pass(uint32_t *count, uint32_t *passed) {
  uint32_t exchanges = *count + 1;
  *count = exchanges;
  *static_cast<volatile uint32_t *>(passed) = exchanges;
}

#ifdef REIN_HOST
// What the CPU does before it runs the kernel: a block that waits for another stream would keep it from running.
inline void post_all(const MeetArgs &a) {
  for (int r = 0; r < a.ranks; r++) post(a, r, *a.round + 1);
}

inline bool all_have_come(const MeetArgs &a) {
  if (load_acquire_system(a.aborted)) return true;
  for (int r = 0; r < a.ranks; r++)
    if (!has_come(a, r, *a.round + 1)) return false;
  return true;
}
#endif

template <class T>
DEVICE float sum_at(const void *const *parts, int ranks, size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; r++) {
    float part = parts[r] ? to_float(static_cast<const T *>(parts[r])[i]) : 0;
    sum = r == 0 ? part : add(sum, part);
  }
  return sum;
}

}  // namespace ranks

ENTRY_THAT_MEETS(meet_ranks, (64), MeetArgs) {
  uint32_t round = *a.round + 1;
  int rank = threadIdx.x;
  if (rank < a.ranks) {
    ranks::post(a, rank, round);
    bool come = false;
    // The flag is in memory of the host, which is slow to read.
    for (unsigned tries = 1; !(come = ranks::has_come(a, rank, round)); tries++)
      if (tries % 1024 == 0 && load_acquire_system(a.aborted)) break;
    const RankLetter *letter = ranks::letter_from(a, rank, round);
    for (int i = 0; i < 2; i++) {
      bool offered = come && letter->offers[i];
      a.table[i * a.ranks + rank] = offered ? letter->offers[i] + a.offsets[i] : 0;
    }
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  *a.round = round;
  ranks::pass(a.count, a.passed);
}

ENTRY(write_table, (64), WriteTableArgs) {
  int rank = threadIdx.x;
  if (rank >= a.ranks) return;
  for (int i = 0; i < 2; i++) a.table[i * a.ranks + rank] = a.addresses[i][rank];
  if (rank == 0) ranks::pass(a.count, a.passed);
}

template <class T>
DEVICE void sum_ranks(const SumRanksArgs &a) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.n) a.out[i] = ranks::sum_at<T>(a.parts, a.ranks, i);
}

template <class Y, class T>
DEVICE void add_norm_ranks(const AddNormRanksArgs &a) {
  const AddNormArgs args = {a.x, a.parts, a.weight, a.out, a.to, a.n, a.factor, a.eps};
  size_t row = size_t(blockIdx.x) * a.n;
  add_norm_of<T>(args, [&](float (&to)[OF_LANE], int i, int n) {
    for (int r = 0; r < a.ranks; r++) {
      float part[OF_LANE] = {};
      if (a.parts[r]) read_row(part, static_cast<const Y *>(a.parts[r]) + row, i, n);
#pragma unroll
      for (int j = 0; j < OF_LANE; j++) to[j] = r == 0 ? part[j] : add(to[j], part[j]);
    }
  });
}

ENTRY(sum_ranks_f32, (256), SumRanksArgs) { sum_ranks<float>(a); }
ENTRY(sum_ranks_bf16, (256), SumRanksArgs) { sum_ranks<bf16>(a); }
ENTRY(add_norm_ranks_f32, (256, 2), AddNormRanksArgs) { add_norm_ranks<float, float>(a); }
ENTRY(add_norm_ranks_bf16, (256, 2), AddNormRanksArgs) { add_norm_ranks<bf16, bf16>(a); }
ENTRY(add_norm_ranks_f32_bf16, (256, 2), AddNormRanksArgs) { add_norm_ranks<float, bf16>(a); }

ENTRY(join_rows, (256), JoinRowsArgs) {
  int column = blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
  if (column >= a.n) return;
  int rank = int(((long long)(row + 1) * a.ranks - 1) / a.rows);
  int first = int((long long)a.rows * rank / a.ranks);
  const float *part = a.parts[rank];
  a.out[size_t(row) * a.n + column] = part ? part[size_t(row - first) * a.n + column] : 0;
}

ENTRY(join_columns, (256), JoinColumnsArgs) {
  uint32_t column = blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
  if (column >= uint32_t(a.n)) return;
  int rank = 0;
  while (column >= a.starts[rank + 1]) rank++;
  uint32_t first = a.starts[rank], width = a.starts[rank + 1] - first;
  const float *part = a.parts[rank];
  a.out[size_t(row) * a.n + column] = part ? part[size_t(row) * width + column - first] : 0;
}

ENTRY(moe_dispatch, (256), MoeDispatchArgs) {
  int route = blockIdx.x * blockDim.x + threadIdx.x;
  if (route >= a.routes) return;
  int row = route / a.top_k;
  uint32_t expert = a.ids[route], token = a.tokens[row];
  if (token == NONE) {
    a.ranks_of[route] = NONE;
    a.mine[route] = OTHER_RANK;
    return;
  }
  if (a.counts) atomicAdd(a.counts + expert, 1ull);
  const uint32_t *holders = a.holders + size_t(expert) * (1 + a.ranks);
  uint32_t hash = expert * 0xc2b2ae3d ^ token * 0x85ebca77;
  hash ^= a.positions[row] * 0x9e3779b1;
  hash = (hash ^ hash >> 15) * 0x2c1b3c6d;
  hash = (hash ^ hash >> 12) * 0x297a2d39;
  hash ^= hash >> 15;
  uint32_t rank = holders[1 + (uint64_t(hash) * holders[0] >> 32)];
  a.ranks_of[route] = rank;
  a.mine[route] = int(rank) == a.rank ? expert : OTHER_RANK;
}

ENTRY(moe_slots, (256), MoeSlotsArgs) {
  SHARED(uint32_t, warps, 8);
  int routes = a.rows * a.top_k;
  uint32_t owner = blockIdx.x, at = 0, *starts = a.starts + size_t(owner) * (a.ranks + 1);
  // 256 routes at a time; each keeps its place among those of the rank.
  for (int from = 0; from < routes; from += 256) {
    int route = from + threadIdx.x, row = route / a.top_k;
    bool mine = route < routes && a.ranks_of[route] == owner;
    uint32_t place = place_in_block(mine, warps, at);
    if (mine) a.slots[route] = place;
    if (route < routes && route % a.top_k == 0)
      for (int r = 0; r < a.ranks; r++)
        if (int((long long)a.rows * r / a.ranks) == row) starts[r] = place;
    __syncthreads();
  }
  if (threadIdx.x == 0) starts[a.ranks] = at;
}

template <class T>
DEVICE void moe_pack(const MoePackArgs &a) {
  int column = blockIdx.y * blockDim.x + threadIdx.x, route = blockIdx.x;
  if (column >= a.n || a.ranks_of[route] != uint32_t(a.rank)) return;
  T part = static_cast<const T *>(a.parts)[size_t(route) * a.n + column];
  static_cast<T *>(a.packed)[size_t(a.slots[route]) * a.n + column] = part;
}

ENTRY(moe_pack_f32, (256), MoePackArgs) { moe_pack<float>(a); }
ENTRY(moe_pack_bf16, (256), MoePackArgs) { moe_pack<bf16>(a); }

template <class T>
DEVICE void moe_combine_ranks(const MoeCombineRanksArgs &a) {
  SHARED(uint32_t, sorted, 64);
  size_t row = a.first + blockIdx.x, local = blockIdx.x;
  const uint32_t *ids = a.ids + row * a.top_k, *ranks_of = a.ranks_of + row * a.top_k;
  const float *weights = a.weights + row * a.top_k;
  moe::sort_routes(ids, a.top_k, sorted);
  int column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= a.n) return;
  float sum = 0;
  if (a.tokens[row] != NONE) {
    for (int i = 0; i < a.top_k; i++) {
      int route = sorted[i];
      uint32_t owner = ranks_of[route];
      const T *part = static_cast<const T *>(a.parts[owner]);
      size_t at = local * a.top_k + route;
      if (a.slots) at = a.slots[row * a.top_k + route] - a.starts[size_t(owner) * (a.ranks + 1) + a.rank];
      if (part) sum += weights[route] * to_float(part[at * a.n + column]);
    }
    if (a.shared) sum += ranks::sum_at<T>(a.shared, a.ranks, local * a.n + column);
  }
  a.out[local * a.n + column] = sum;
}

ENTRY(moe_combine_ranks_f32, (256), MoeCombineRanksArgs) { moe_combine_ranks<float>(a); }
ENTRY(moe_combine_ranks_bf16, (256), MoeCombineRanksArgs) { moe_combine_ranks<bf16>(a); }
