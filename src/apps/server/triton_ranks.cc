#include "apps/server/triton_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include "apps/models/ranks.h"

namespace tandem::apps {
namespace {

using serve::kserve::EngineRole;
using serve::kserve::FolderModel;
using serve::kserve::FolderModels;

bool VariableIs(const char* name, std::string_view value) {
  const char* const found = std::getenv(name);
  return found != nullptr && value == found;
}

std::vector<const FolderModel*> Engines(const FolderModels& models) {
  std::vector<const FolderModel*> engines;
  for (const auto& [name, model] : models) {
    if (RowOf(model.parameters.kind).role == EngineRole::kEngine) engines.push_back(&model);
  }
  return engines;
}

// As the parameters of a model say; 0: they say nothing.
size_t RanksOf(const FolderModel& model) {
  const size_t gpus = model.parameters.gpu_device_ids.size();
  return gpus > 0 ? gpus : model.parameters.participant_ids.size();
}

// Participants of one launch: as many as the model has GPUs, each in the world and only once.
void CheckParticipants(const TritonLaunch& launch, const FolderModel& model,
                       std::set<int32_t>& taken, std::vector<std::string>& warnings) {
  const std::vector<int32_t>& ids = model.parameters.participant_ids;
  if (ids.empty()) return;
  const std::string name =
      fmt::format("{}: parameter participant_ids {}", model.name, fmt::join(ids, ","));
  if (const size_t gpus = model.parameters.gpu_device_ids.size(); gpus > 0 && gpus != ids.size()) {
    warnings.push_back(fmt::format("{}: gpu_device_ids names {} GPU{}, which count", name, gpus,
                                   gpus == 1 ? "" : "s"));
  }
  for (const int32_t id : ids) {
    if (!taken.insert(id).second) {
      warnings.push_back(fmt::format("{}: {} is named twice", name, id));
    } else if (id < 1 || id >= launch.world_size) {
      warnings.push_back(fmt::format("{}: {} is none of 1 to {}, as --world_size {} says", name, id,
                                     launch.world_size - 1, launch.world_size));
    }
  }
}

}  // namespace

TritonLaunch LaunchFrom(const OptionValues& values) {
  TritonLaunch launch;
  launch.world_size = RankOptionRows().Read(values).world_size;
  launch.is_orchestrated = VariableIs("TRTLLM_ORCHESTRATOR", "1");
  launch.is_spawned_before =
      launch.is_orchestrated && VariableIs("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES", "0");
  return launch;
}

std::vector<std::string> LaunchWarnings(const TritonLaunch& launch, const FolderModels& models) {
  std::vector<std::string> warnings;
  if (!launch.is_orchestrated) return warnings;
  if (!launch.is_spawned_before) {
    if (launch.world_size > 1) {
      warnings.push_back(
          fmt::format("--world_size {}: with --multi-model and without --disable-spawn-processes "
                      "it is 1; gpu_device_ids of each model says where it runs",
                      launch.world_size));
    }
    return warnings;
  }
  std::set<int32_t> taken;
  size_t ranks = 1;
  bool all_known = true;
  std::string sum = "1";
  for (const FolderModel* model : Engines(models)) {
    CheckParticipants(launch, *model, taken, warnings);
    all_known = all_known && RanksOf(*model) > 0;
    ranks += RanksOf(*model);
    sum += fmt::format(" + {} of {}", RanksOf(*model), model->name);
  }
  if (all_known && ranks != static_cast<size_t>(launch.world_size)) {
    warnings.push_back(
        fmt::format("--world_size {}: the models have {} ranks ({}); each runs on "
                    "those that its gpu_device_ids says",
                    launch.world_size, ranks, sum));
  }
  return warnings;
}

Result<std::string> GpuList(const std::vector<int32_t>& ids, int gpus) {
  std::vector<std::string> devices;
  std::set<int32_t> taken;
  for (const int32_t id : ids) {
    std::string why;
    if (id >= gpus) {
      why = fmt::format("there is no GPU {} on this machine, which has {}", id,
                        gpus == 1 ? std::string("GPU 0 only") : fmt::format("0 to {}", gpus - 1));
    } else if (!taken.insert(id).second) {
      why = fmt::format("GPU {} is named twice; each rank needs its own", id);
    }
    if (!why.empty()) {
      return InvalidArgument(
                 fmt::format("parameter gpu_device_ids is {}: {}", fmt::join(ids, ","), why))
          .WithField("gpu_device_ids");
    }
    devices.push_back(fmt::format("cuda:{}", id));
  }
  return fmt::format("{}", fmt::join(devices, ","));
}

std::string CpuList(size_t ids) {
  return fmt::format("{}", fmt::join(std::vector<std::string_view>(ids, "cpu"), ","));
}

Result<std::string> DraftGpuList(const FolderModel& target, const FolderModel& draft, int gpus) {
  const std::vector<int32_t>& at = target.parameters.gpu_device_ids;
  const std::vector<int32_t>& asked = draft.parameters.gpu_device_ids;
  if (at.empty() || asked.empty() || std::ranges::is_permutation(at, asked)) return std::string();
  const auto shared = std::ranges::count_if(
      asked, [&](int32_t gpu) { return std::ranges::find(at, gpu) != at.end(); });
  Result<std::string> list = GpuList(asked, gpus);
  if (list.ok() && shared > 0 && asked.size() > 1) {
    list = InvalidArgument(fmt::format(
        "parameter gpu_device_ids is {}, and that of {} {}: a draft has one of its target's GPUs, "
        "or only others",
        fmt::join(asked, ","), target.name, fmt::join(at, ",")));
  }
  return list.ok() ? list : list.status().Annotate(draft.name);
}

}  // namespace tandem::apps
