#include <cuda_runtime.h>

#include "comm/gpu_links.h"

namespace tandem {
namespace {

// 0 where the runtime cannot tell.
int Attribute(cudaDeviceP2PAttr attribute, int from, int to) {
  int value = 0;
  if (cudaDeviceGetP2PAttribute(&value, attribute, from, to) == cudaSuccess) return value;
  cudaGetLastError();
  return 0;
}

bool CanRead(int reader, int owner) {
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, reader, owner) == cudaSuccess) return can != 0;
  cudaGetLastError();
  return false;
}

}  // namespace

GpuLinks ReadGpuLinks() {
  GpuLinks links;
  if (cudaGetDeviceCount(&links.num_gpus) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  for (int first = 0; first < links.num_gpus; ++first) {
    for (int second = first + 1; second < links.num_gpus; ++second) {
      links.links.push_back(
          {.first = first,
           .second = second,
           .can_read = CanRead(first, second) && CanRead(second, first),
           .has_atomics = Attribute(cudaDevP2PAttrNativeAtomicSupported, first, second) != 0,
           .performance_rank = Attribute(cudaDevP2PAttrPerformanceRank, first, second)});
    }
  }
  return links;
}

}  // namespace tandem
