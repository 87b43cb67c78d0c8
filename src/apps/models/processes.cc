#include "apps/models/processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/cli/version.h"
#include "base/checksum.h"
#include "base/file.h"
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

Launched LaunchedBy(const Environ& environ) {
  for (const auto& found : {ByOpenMpi(environ), ByLeaderWorkerSet(environ)}) {
    if (found) return *found;
  }
  return {};
}

bool IsUnix(std::string_view address) { return address.starts_with("unix:"); }

// With the port, if it has none. An address of IPv6 is in brackets.
std::string WithPort(const std::string& address) {
  if (IsUnix(address) || address.find(':', address.rfind(']') + 1) != std::string::npos) {
    return address;
  }
  return fmt::format("{}:{}", address, kPort);
}

// The fastest instruction set that all processes have: what several ranks compute alike must have
// the same bits.
Result<std::string> AgreeOnIsa(const std::string& asked, const RankProcesses& processes) {
  constexpr std::array<std::string_view, 4> kIsas = {"scalar", "avx2", "avx512", "amx"};
  const std::string own = asked == "auto" ? ops::SupportedCpuIsas().back() : asked;
  std::array<int64_t, 1> least = {std::ranges::find(kIsas, own) - kIsas.begin()};
  TANDEM_RETURN_IF_ERROR(TakeLeast(least, processes));
  if (least[0] >= std::ssize(kIsas)) return own;  // one that nobody knows, which is refused later
  return std::string(kIsas[static_cast<size_t>(least[0])]);
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
           .meaning = "Which of them this one is; 0 leads and serves. -1: as mpirun or a "
                      "LeaderWorkerSet says",
           .group = kProcesses,
           .min = -1,
           .max = 63,
           .alias = "node_rank"}),
      BindOption<ProcessOptions, &ProcessOptions::leader_address>(
          {.name = "leader_address",
           .meaning = "HOST or HOST:PORT where process 0 waits for the others; port 18200 without "
                      "one. mpirun on one machine and a LeaderWorkerSet need none",
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

Result<RankWorld> WorldOf(const ProcessOptions& options, const Environ& environ) {
  const Launched launched = LaunchedBy(environ);
  RankWorld world;
  world.version = VersionLine();
  world.size = options.count > 0 ? options.count : launched.count;
  if (world.size <= 1) {
    world.size = 1;
    return world;
  }
  const bool told = launched.count == world.size;
  if (options.rank < 0 && !told) {
    return InvalidArgument(
        fmt::format("--process_rank: which of the {} processes this one is", world.size));
  }
  world.rank = options.rank >= 0 ? options.rank : launched.rank;
  if (world.rank >= world.size) {
    return InvalidArgument(
        fmt::format("--process_rank {}: there are {} processes, the last one is "
                    "{}",
                    world.rank, world.size, world.size - 1));
  }
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
  }
  // Of a Unix socket the system tells who comes.
  if (world.secret.empty() && !IsUnix(world.address)) {
    return InvalidArgument(fmt::format(
        "--rank_secret_file: processes that meet at {} need a secret, because others could come "
        "there too",
        world.address));
  }
  return world;
}

Result<std::unique_ptr<ProcessGroup>> JoinProcesses(const RankWorld& world, bool on_gpu,
                                                    const std::string& isa) {
  TANDEM_ASSIGN_OR_RETURN(JoinedRanks joined, JoinRanks(world, kPatience));
  auto group = std::make_unique<ProcessGroup>();
  group->rank = world.rank;
  group->size = world.size;
  group->sharing = joined.sharing;
  group->share = joined.share;
  group->processes.on_machine = joined.on_machine;
  for (auto& link : joined.links) group->processes.links.push_back(std::move(link));
  // The least, and of the negative the greatest: equal where all are.
  std::array<int64_t, 3> values = {on_gpu ? 1 : 0, on_gpu ? -1 : 0, joined.on_machine};
  TANDEM_RETURN_IF_ERROR(TakeLeast(values, group->processes));
  if (values[0] != -values[1]) {
    return FailedPrecondition("--device: some of the processes have a GPU and some have none");
  }
  if (on_gpu && values[2] < world.size) {
    return FailedPrecondition(
        "--num_processes: the GPUs of several machines are not ranks of one model yet; start a "
        "server on each machine, with --tensor_parallel_size for its GPUs");
  }
  if (!on_gpu) {
    TANDEM_ASSIGN_OR_RETURN(group->isa, AgreeOnIsa(isa, group->processes));
  }
  group->idle = on_gpu && world.rank > 0;
  if (!on_gpu) group->ranks = std::move(joined.ranks);
  return group;
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
