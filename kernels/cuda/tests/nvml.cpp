// A management library without GPUs: libnvidia-ml.so.1 with the functions that kernels/src/cuda/topology.rs calls.
//   REIN_FAKE_NVML_CLIQUE  the GPUs are in a fabric, in this clique; without it they are in none
//   REIN_FAKE_NVML_LINKS   0 (NVLinks of a GPU that are up)
//   REIN_FAKE_NVML_PAIRS   without it, links lead to a switch; with it, to the other GPU of a pair: 0 and 1, 2 and 3
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
struct FabricInfo {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
struct PciInfo {
  char legacy[16];
  unsigned numbers[5];
  char address[32];
};
int devices[64];
}  // namespace

#define FUNCTION(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

FUNCTION(nvmlInit_v2) { return 0; }
FUNCTION(nvmlDeviceGetHandleByPciBusId_v2, const char *address, void **handle) {
  // driver.cpp has GPU i on bus i + 1.
  unsigned bus = 0;
  if (sscanf(address, "%*x:%x:", &bus) != 1 || bus < 1 || bus > 64) return 2;
  return *handle = &devices[bus - 1], 0;
}
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
FUNCTION(nvmlDeviceGetNvLinkRemoteDeviceType, void *, unsigned, int *kind) {
  constexpr int GPU = 0, SWITCH = 2;
  return *kind = getenv("REIN_FAKE_NVML_PAIRS") ? GPU : SWITCH, 0;
}
FUNCTION(nvmlDeviceGetNvLinkRemotePciInfo_v2, int *device, unsigned, PciInfo *info) {
  memset(info, 0, sizeof *info);
  int other = int(device - devices) ^ 1;
  snprintf(info->address, sizeof info->address, "00000000:%02X:00.0", unsigned(other + 1) & 255);
  return 0;
}
