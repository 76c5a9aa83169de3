// A management library without GPUs: libnvidia-ml.so.1 with the functions that kernels/src/cuda/topology.rs calls.
//   REIN_FAKE_NVML_CLIQUE  the GPUs are in a fabric, in this clique; without it they are in none
//   REIN_FAKE_NVML_LINKS   0 (NVLinks of a GPU that are up)
#include <cstdlib>
#include <cstring>

namespace {
struct FabricInfo {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
int device;
}  // namespace

#define FUNCTION(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

FUNCTION(nvmlInit_v2) { return 0; }
FUNCTION(nvmlDeviceGetHandleByPciBusId_v2, const char *, void **handle) { return *handle = &device, 0; }
FUNCTION(nvmlDeviceGetGpuFabricInfo, void *, FabricInfo *info) {
  const char *clique = getenv("REIN_FAKE_NVML_CLIQUE");
  constexpr int NOT_SUPPORTED = 3;
  if (!clique) return NOT_SUPPORTED;
  memset(info, 0, sizeof *info);
  memset(info->cluster, 0xab, sizeof info->cluster);
  info->clique = atoi(clique);
  info->state = 3;
  return 0;
}
FUNCTION(nvmlDeviceGetNvLinkState, void *, unsigned link, unsigned *active) {
  const char *links = getenv("REIN_FAKE_NVML_LINKS");
  return *active = links && int(link) < atoi(links), 0;
}
