#include "apps/models/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/cores.h"
#include "comm/in_process.h"
#include "model/sharding.h"

namespace tandem::apps {
namespace {

// `size`: ranks that the model is split over, of `ranks` that there are: all of them or 1.
Result<std::vector<ModelSpec>> PartsOf(const ModelSpec& spec, int32_t size, int32_t ranks) {
  std::vector<ModelSpec> parts;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const RankPlace place = size == 1 ? RankPlace{} : RankPlace{rank, size};
    TANDEM_ASSIGN_OR_RETURN(parts.emplace_back(), RankSpec(spec, place));
  }
  return parts;
}

}  // namespace

const BoundOptions<RankOptions>& RankOptionRows() {
  constexpr std::string_view kRanks = "Ranks";
  static const BoundOptions<RankOptions> rows({
      BindOption<RankOptions, &RankOptions::target>(
          {.name = "tensor_parallel_size",
           .meaning = "Ranks that the target is split over by heads and neurons; on a CPU each has "
                      "its share of the threads",
           .group = kRanks,
           .min = 1,
           .max = 64,
           .alias = "tp_size"}),
      BindOption<RankOptions, &RankOptions::draft>(
          {.name = "draft_tensor_parallel_size",
           .meaning = "The same of the draft: as many, or 1 for all of it on each rank; 0: as many "
                      "if it can be split so",
           .group = kRanks,
           .min = 0,
           .max = 64,
           .alias = "draft_tp_size"}),
  });
  return rows;
}

BackendOptions BackendOfRank(const BackendOptions& options, const RankOptions& ranks,
                             int32_t rank) {
  if (ranks.target == 1) return options;
  BackendOptions share = options;
  const int threads = options.cpu.num_threads > 0 ? options.cpu.num_threads : AvailableCores();
  share.cpu.num_threads = std::max(threads / ranks.target, 1);
  share.cpu.first_core = rank * share.cpu.num_threads;
  return share;
}

Result<std::vector<std::shared_ptr<ops::Backend>>> MakeRankBackends(
    const BackendOptions& options, const RankOptions& ranks, std::shared_ptr<ops::Backend> first) {
  if (ranks.target > 1 && first->device().kind != Device::Kind::kCpu) {
    return Unimplemented(
        "--tensor_parallel_size: a model on several GPUs is not supported yet; use --device cpu, "
        "or one GPU");
  }
  std::vector<std::shared_ptr<ops::Backend>> backends = {std::move(first)};
  for (int32_t rank = 1; rank < ranks.target; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(backends.emplace_back(),
                            MakeBackend(BackendOfRank(options, ranks, rank)));
  }
  return backends;
}

std::vector<std::shared_ptr<Communicator>> MakeCommunicators(
    const std::vector<std::shared_ptr<ops::Backend>>& backends) {
  if (backends.size() == 1) return {nullptr};
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (auto& rank : MakeInProcessRanks(static_cast<int>(backends.size()))) {
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

Result<std::vector<ModelSpec>> TargetParts(const ModelSpec& spec, const RankOptions& ranks) {
  Result<std::vector<ModelSpec>> parts = PartsOf(spec, ranks.target, ranks.target);
  if (!parts.ok()) return parts.status().Annotate("--tensor_parallel_size");
  return parts;
}

Result<std::vector<ModelSpec>> DraftParts(const ModelSpec& spec, const RankOptions& ranks) {
  if (ranks.draft > 1 && ranks.draft != ranks.target) {
    return InvalidArgument(
        fmt::format("--draft_tensor_parallel_size {}: it must be 1 or that of the target, which is "
                    "{}",
                    ranks.draft, ranks.target));
  }
  const int32_t size = ranks.draft == 0 ? ranks.target : ranks.draft;
  Result<std::vector<ModelSpec>> parts = PartsOf(spec, size, ranks.target);
  if (!parts.ok() && ranks.draft == 0) return PartsOf(spec, 1, ranks.target);
  if (!parts.ok()) return parts.status().Annotate("--draft_tensor_parallel_size");
  return parts;
}

}  // namespace tandem::apps
