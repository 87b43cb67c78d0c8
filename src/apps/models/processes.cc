#include "apps/models/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/cli/version.h"
#include "base/checksum.h"
#include "base/file.h"
#include "comm/gpu_links.h"
#include "ops/backend.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kPort = "18200";
constexpr size_t kMaxSecret = 4096;
// A pod may have to wait for its machine.
constexpr Nanos kPatience = std::chrono::minutes(10);

// What a launcher tells the processes that it starts.
struct Launched {
  int32_t count = 1;
  int32_t rank = 0;
  std::string address;  // of rank 0; empty: the launcher does not tell
  std::string by;       // whom messages name
};

std::optional<int32_t> Number(const Environ& environ, const char* name) {
  const char* const text = environ(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  int32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

// Within a machine the job's own name tells the processes where rank 0 is.
std::optional<Launched> ByOpenMpi(const Environ& environ) {
  const auto count = Number(environ, "OMPI_COMM_WORLD_SIZE");
  const auto rank = Number(environ, "OMPI_COMM_WORLD_RANK");
  if (!count || !rank) return std::nullopt;
  Launched launched{.count = *count, .rank = *rank, .address = {}, .by = "mpirun"};
  const char* const job = environ("PMIX_NAMESPACE");
  if (job != nullptr && Number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") == count) {
    launched.address = fmt::format("unix:tandem-{}", job);
  }
  return launched;
}

std::optional<Launched> ByLeaderWorkerSet(const Environ& environ) {
  const auto count = Number(environ, "LWS_GROUP_SIZE");
  const auto rank = Number(environ, "LWS_WORKER_INDEX");
  const char* const leader = environ("LWS_LEADER_ADDRESS");
  if (!count || !rank || leader == nullptr) return std::nullopt;
  return Launched{.count = *count, .rank = *rank, .address = leader, .by = "LeaderWorkerSet"};
}

// A pod that does not know its place would serve alone, beside others that wait for it.
Status CheckLeaderWorkerSet(const Environ& environ) {
  const bool is_told = ByOpenMpi(environ) || ByLeaderWorkerSet(environ);
  if (environ("LWS_GROUP_SIZE") == nullptr || is_told) return {};
  return InvalidArgument(
      "LWS_GROUP_SIZE is set as in a pod of a LeaderWorkerSet, but LWS_WORKER_INDEX or "
      "LWS_LEADER_ADDRESS is missing, or one of the numbers is none; --num_processes 1 runs this "
      "process alone");
}

Launched LaunchedBy(const Environ& environ) {
  for (const auto& found : {ByOpenMpi(environ), ByLeaderWorkerSet(environ)}) {
    if (found) return *found;
  }
  return {};
}

// With the port, if it has none. An address of IPv6 is in brackets.
std::string WithPort(const std::string& address) {
  if (IsUnixAddress(address) || address.find(':', address.rfind(']') + 1) != std::string::npos) {
    return address;
  }
  return fmt::format("{}:{}", address, kPort);
}

// The fastest instruction set that all processes have: what several ranks compute alike must have
// the same bits. A CPU that has one has all slower ones too, so its place in the list tells it.
Result<std::string> AgreeOnIsa(const std::string& asked, const RankProcesses& processes) {
  const std::vector<std::string> supported = ops::SupportedCpuIsas();
  const auto found = std::ranges::find(supported, asked == "auto" ? supported.back() : asked);
  std::array<int64_t, 1> least = {found - supported.begin()};
  TANDEM_RETURN_IF_ERROR(TakeLeast(least, processes));
  // What this CPU lacks is refused when its backend is made.
  return found == supported.end() ? asked : supported[static_cast<size_t>(least[0])];
}

}  // namespace

const BoundOptions<ProcessOptions>& ProcessOptionRows() {
  constexpr std::string_view kProcesses = "Ranks in processes";
  static const BoundOptions<ProcessOptions> rows({
      BindOption<ProcessOptions, &ProcessOptions::count>(
          {.name = "num_processes",
           .meaning = "Processes that this model is split over, each started with the same command "
                      "line; 0: as many as mpirun or a LeaderWorkerSet has started; 1: this one "
                      "alone, whoever started it",
           .group = kProcesses,
           .min = 0,
           .max = 64,
           .alias = "nnodes"}),
      BindOption<ProcessOptions, &ProcessOptions::rank>(
          {.name = "process_rank",
           .meaning = "Number of this process, from 0; process 0 leads and serves. -1: taken from "
                      "mpirun or the LeaderWorkerSet",
           .group = kProcesses,
           .min = -1,
           .max = 63,
           .alias = "node_rank"}),
      BindOption<ProcessOptions, &ProcessOptions::leader_address>(
          {.name = "leader_address",
           .meaning = "HOST or HOST:PORT where process 0 waits for the others; the default port is "
                      "18200. Not needed with mpirun on one machine or a LeaderWorkerSet",
           .group = kProcesses,
           .alias = "dist_init_addr"}),
      BindOption<ProcessOptions, &ProcessOptions::secret_file>(
          {.name = "rank_secret_file",
           .meaning =
               "File with a secret that all processes have; needed where they meet over TCP, "
               "which mpirun on one machine does not use",
           .group = kProcesses}),
  });
  return rows;
}

int32_t NumProcesses(const ProcessOptions& options, const Environ& environ) {
  return std::max(options.count > 0 ? options.count : LaunchedBy(environ).count, 1);
}

Status CheckProcessRank(int32_t rank, int32_t num_processes) {
  if (rank < num_processes) return {};
  return InvalidArgument(
      fmt::format("--process_rank {}: there {} {} process{}, and the last one is number {}", rank,
                  num_processes == 1 ? "is" : "are", num_processes, num_processes == 1 ? "" : "es",
                  num_processes - 1));
}

Result<RankWorld> WorldOf(const ProcessOptions& options, const Environ& environ) {
  if (options.count == 0) TANDEM_RETURN_IF_ERROR(CheckLeaderWorkerSet(environ));
  const Launched launched = LaunchedBy(environ);
  RankWorld world;
  world.version = VersionLine();
  world.size = NumProcesses(options, environ);
  if (world.size == 1) {
    const bool means_several = options.rank >= 0 || !options.leader_address.empty();
    if (means_several && options.count == 0) {
      return InvalidArgument(
          "--num_processes: how many processes there are; --process_rank and --leader_address are "
          "for several");
    }
    return world;
  }
  const bool told = launched.count == world.size;
  if (options.rank < 0 && !told) {
    return InvalidArgument(
        fmt::format("--process_rank: give each of the {} processes its number, 0 to {}", world.size,
                    world.size - 1));
  }
  world.rank = options.rank >= 0 ? options.rank : launched.rank;
  TANDEM_RETURN_IF_ERROR(CheckProcessRank(world.rank, world.size));
  std::string address = options.leader_address;
  if (address.empty() && told) address = launched.address;
  if (address.empty()) {
    return InvalidArgument(fmt::format(
        "--leader_address: {} does not say where process 0 is; give HOST or HOST:PORT of its "
        "machine to all processes",
        told ? launched.by : "the command line"));
  }
  world.address = WithPort(address);
  if (!options.secret_file.empty()) {
    Result<std::string> secret = ReadTextFile(options.secret_file, kMaxSecret);
    if (!secret.ok()) return secret.status().Annotate("--rank_secret_file");
    world.secret = secret->substr(0, secret->find_last_not_of(" \t\r\n") + 1);
    if (world.secret.empty()) {
      return InvalidArgument(
          fmt::format("--rank_secret_file {}: the file is empty", options.secret_file));
    }
  }
  // Of a Unix socket the system tells who comes.
  if (world.secret.empty() && !IsUnixAddress(world.address)) {
    return InvalidArgument(fmt::format(
        "--rank_secret_file: processes that meet at {} need a secret, because others could come "
        "there too",
        world.address));
  }
  return world;
}

Result<std::unique_ptr<ProcessGroup>> JoinProcesses(RankWorld world, bool on_gpu,
                                                    const std::string& isa) {
  const std::vector<ops::CudaDevice> gpus =
      on_gpu ? ops::CudaDevices() : std::vector<ops::CudaDevice>();
  if (on_gpu && gpus.empty()) return Unavailable("--device: this process can use no GPU");
  std::set<std::string> ids;
  for (const ops::CudaDevice& gpu : gpus) ids.insert(gpu.id);
  world.gpus = fmt::format("{}", fmt::join(ids, ","));
  TANDEM_ASSIGN_OR_RETURN(JoinedRanks joined, JoinRanks(world, kPatience));
  RankProcesses all = {.links = {}, .on_machine = joined.on_machine};
  for (auto& link : joined.links) all.links.push_back(std::move(link));
  TANDEM_RETURN_IF_ERROR(
      AgreeOnText(on_gpu ? "gpu" : "cpu",
                  "--device: some of the processes have a GPU and some have none", all));
  auto group = std::make_unique<ProcessGroup>();
  group->rank = world.rank;
  group->num_with_ranks = static_cast<int32_t>(joined.with_ranks.size());
  const auto has_ranks = [&joined](int process) {
    return std::ranges::find(joined.with_ranks, process) != joined.with_ranks.end();
  };
  const auto own = std::ranges::find(joined.with_ranks, world.rank);
  const bool waits = own == joined.with_ranks.end();
  group->index = waits ? -1 : static_cast<int32_t>(own - joined.with_ranks.begin());
  group->num_on_cores = joined.num_on_cores;
  group->index_on_cores = joined.index_on_cores;
  group->peers.on_machine = joined.on_machine;
  if (on_gpu && group->shares_engine()) {
    const Result<std::string> nccl = NcclVersion();
    // Other GPUs would choose other kernels, whose results differ in their last bits.
    std::set<std::string> kinds;
    for (const ops::CudaDevice& gpu : gpus) kinds.insert(gpu.kind);
    TANDEM_RETURN_IF_ERROR(AgreeOnText(fmt::format("{}", fmt::join(kinds, ",")),
                                       "the processes have different kinds of GPUs", all));
    TANDEM_RETURN_IF_ERROR(AgreeOnText(nccl.ok() ? *nccl : "none",
                                       "the processes have different versions of NCCL", all));
    TANDEM_RETURN_IF_ERROR(nccl.status());
  }
  for (auto& link : all.links) {
    const bool works = !waits && has_ranks(link->peer());
    (works ? group->peers.links : group->waiting).push_back(std::move(link));
  }
  if (!on_gpu) {
    TANDEM_ASSIGN_OR_RETURN(group->isa, AgreeOnIsa(isa, group->peers));
  }
  if (group->shares_engine()) group->communicator = std::move(joined.ranks);
  return group;
}

Status TakeRanksOfGpus(int32_t num_gpus, int32_t num_processes, const ProcessGroup& group,
                       RankOptions& ranks) {
  const int32_t with_ranks = group.num_with_ranks;
  std::array<int64_t, 1> fewest = {num_gpus};
  TANDEM_RETURN_IF_ERROR(TakeLeast(fewest, group.peers));
  if (ranks.target == 0) {
    const bool each_has_some = num_processes == with_ranks;
    const auto all = each_has_some ? static_cast<int32_t>(with_ranks * fewest[0]) : num_processes;
    ranks.target = std::max(all / ranks.stages, 1);
  }
  TANDEM_RETURN_IF_ERROR(AgreeOnText(
      fmt::format("{} {}", ranks.target, ranks.stages),
      "--tensor_parallel_size and --pipeline_parallel_size must be the same in all processes",
      group.peers));
  if (ranks.count() % with_ranks != 0) {
    return InvalidArgument(fmt::format(
        "--tensor_parallel_size {}: {} ranks cannot be divided among {} processes with GPUs of "
        "their own",
        ranks.target, ranks.count(), with_ranks));
  }
  if (ranks.stages % with_ranks != 0 && with_ranks % ranks.stages != 0) {
    return InvalidArgument(
        fmt::format("--pipeline_parallel_size {}: {} processes have GPUs of their own; a process "
                    "has whole stages, or a stage whole processes",
                    ranks.stages, with_ranks));
  }
  ranks.here = ranks.count() / with_ranks;
  ranks.first = group.index * ranks.here;
  return {};
}

Result<std::string> SampleModel(const std::filesystem::path& folder) {
  constexpr size_t kSamples = 256, kSampleBytes = 4096;
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  if (error) return NotFound(fmt::format("{}: {}", folder.string(), error.message()));
  std::ranges::sort(files);
  std::string text;
  for (const std::filesystem::path& path : files) {
    TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
    const std::span<const std::byte> bytes = file->bytes();
    uint64_t hash = bytes.size();
    for (size_t i = 0; i < kSamples; ++i) {
      const size_t begin = bytes.size() / kSamples * i;
      hash = Hash64(bytes.subspan(begin, std::min(kSampleBytes, bytes.size() - begin)), hash);
    }
    text += fmt::format("{} {} {}\n", path.filename().string(), bytes.size(), hash);
  }
  return text;
}

}  // namespace tandem::apps
