// embed: out [rows, hidden] f32 = table [count, hidden] T at ids [rows] - first; zeros where the id is NONE, and -0
// where the table does not have it: added to what another rank has, -0 changes no bit.
// Grid: rows. Any hidden. Exact.
//
// add_positions: x [rows, hidden] f32 += table [count, hidden] f32 at positions [rows]; a row with another position
// stays. Grid: rows. Error: one rounding.
#include "common.cuh"

struct EmbedArgs {
  const void *table;
  const uint32_t *ids;
  float *out;
  int hidden;
  uint32_t first, count;
};

struct AddPositionsArgs {
  float *x;
  const float *table;
  const uint32_t *positions;
  int hidden;
  uint32_t count;
};

template <class T>
DEVICE void embed(const EmbedArgs &a) {
  uint32_t id = a.ids[blockIdx.x];
  bool held = id - a.first < a.count;
  const T *from = static_cast<const T *>(a.table) + size_t(id - a.first) * a.hidden;
  float *to = a.out + size_t(blockIdx.x) * a.hidden, other = id == NONE ? 0.0f : -0.0f;
  for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) to[i] = held ? to_float(from[i]) : other;
}

ENTRY(add_positions, (256), AddPositionsArgs) {
  uint32_t position = a.positions[blockIdx.x];
  if (position >= a.count) return;
  const float *from = a.table + size_t(position) * a.hidden;
  float *to = a.x + size_t(blockIdx.x) * a.hidden;
  for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) to[i] += from[i];
}
ENTRY(embed_f32, (256), EmbedArgs) { embed<float>(a); }
ENTRY(embed_bf16, (256), EmbedArgs) { embed<bf16>(a); }
