// What the models of a Triton repository, and the launch of their server, say of ranks and devices.
// Pure but for LaunchFrom, which reads the environment; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/status.h"
#include "serve/kserve/models/repository_links.h"

namespace tandem::apps {

// A launch through MPI, as scripts/launch_triton_server.py describes it to the server.
struct TritonLaunch {
  int32_t world_size = 1;
  // Rank 0 holds no model and sends requests to the ranks of all models; else the world is the
  // ranks of one model.
  bool is_orchestrated = false;
  bool is_spawned_before = false;  // with it: all ranks are started together, by mpirun
};
TritonLaunch LaunchFrom(const OptionValues& values);

// Where the numbers of the launch do not fit those of the models. One process serves here whatever
// they are, so they are warnings, a line each.
std::vector<std::string> LaunchWarnings(const TritonLaunch& launch,
                                        const serve::kserve::FolderModels& models);

// "cuda:1,cuda:2" for gpu_device_ids 1,2. INVALID_ARGUMENT names the parameter when this machine,
// which has `gpus`, does not have them, or when one stands there twice.
Result<std::string> GpuList(const std::vector<int32_t>& ids, int gpus);
// "cpu,cpu" for as many ids.
std::string CpuList(size_t ids);

// Where a draft runs that drafts for `target`: "cuda:0" by its own gpu_device_ids. Empty: beside
// its target, because it names the same GPUs or none. INVALID_ARGUMENT when it can not run there,
// named as the parameter of the draft.
Result<std::string> DraftGpuList(const serve::kserve::FolderModel& target,
                                 const serve::kserve::FolderModel& draft, int gpus);

}  // namespace tandem::apps
