// Microseconds of an all-reduce of bf16 rows on GPUs 0 .. n, by size, both ways, and where
// libnccl.so.2 can be loaded as NCCL does it and as ranks of several processes do:
//
//   all_reduce_bench [GPUS]
//
// A graph of 100 calls is launched 50 times; the time of a launch by hundred, minimum and median.
// GB/s: bytes of the rows by the minimum of the faster way.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/cuda/testing/gpus.cuh"
#include "comm/nccl_library.h"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CheckCuda;

constexpr int kCalls = 100;
constexpr int kLaunches = 50;
constexpr int64_t kLeastBytes = int64_t{4} << 10, kMostBytes = int64_t{64} << 20;

// The GPUs as ranks of NCCL.
class Nccl {
 public:
  // Null without the library, or when it fails.
  static std::unique_ptr<Nccl> Load(int gpus) {
    // Without multicast, which can put GPUs that other programs share out of service.
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    const Result<const NcclLibrary*> library = NcclLibrary::Load();
    if (!library.ok()) return nullptr;
    auto nccl = std::make_unique<Nccl>();
    nccl->library_ = *library;
    // It is loaded by now, and stays.
    nccl->all_reduce_ = reinterpret_cast<AllReduceFunction>(
        dlsym(dlopen("libnccl.so.2", RTLD_NOW), "ncclAllReduce"));
    if (nccl->all_reduce_ == nullptr) return nullptr;
    nccl->comms_.resize(static_cast<size_t>(gpus));
    NcclLibrary::UniqueId id;
    int error = nccl->library_->get_unique_id(&id);
    if (error != NcclLibrary::kSuccess) return nullptr;
    error = nccl->library_->Group([&] {
      for (int rank = 0; rank < gpus && error == NcclLibrary::kSuccess; ++rank) {
        CheckCuda(cudaSetDevice(rank), "choosing the GPU");
        error = nccl->library_->init_rank(&nccl->comms_[static_cast<size_t>(rank)], gpus, id, rank);
      }
      return error;
    });
    if (error != NcclLibrary::kSuccess) return nullptr;
    return nccl;
  }
  void AllReduce(int rank, const Tensor& rows, cudaStream_t stream) const {
    constexpr int kBf16 = 9, kSum = 0;
    if (all_reduce_(rows.data, rows.data, static_cast<size_t>(rows.NumElements()), kBf16, kSum,
                    comms_[static_cast<size_t>(rank)], stream) != NcclLibrary::kSuccess) {
      fmt::print("NCCL failed\n");
    }
  }

 private:
  using AllReduceFunction = int (*)(const void* from, void* to, size_t count, int type, int op,
                                    NcclLibrary::Comm comm, cudaStream_t stream);
  const NcclLibrary* library_ = nullptr;
  AllReduceFunction all_reduce_ = nullptr;
  std::vector<NcclLibrary::Comm> comms_;  // never destroyed: the program ends
};

struct Times {
  double minimum = 0.0, median = 0.0;  // microseconds of a call
};

// Of all ranks at once; the times are those of rank 0.
Times Measure(Gpus& gpus, int64_t bytes,
              const std::function<void(RankOfGpu&, const Tensor&)>& all_reduce) {
  std::barrier together(static_cast<std::ptrdiff_t>(gpus.ranks().size()));
  std::vector<double> times;
  gpus.Run([&](RankOfGpu& rank) {
    const GpuMemory memory(static_cast<size_t>(bytes));
    const Tensor rows = memory.View(DType::kBF16, {1, bytes / 2});
    cudaEvent_t begin = nullptr, end = nullptr;
    CheckCuda(cudaEventCreate(&begin), "an event");
    CheckCuda(cudaEventCreate(&end), "an event");
    together.arrive_and_wait();
    all_reduce(rank, rows);
    rank.Synchronize();
    const cudaGraphExec_t graph = rank.Record([&] {
      for (int call = 0; call < kCalls; ++call) all_reduce(rank, rows);
    });
    for (int launch = 0; launch < kLaunches + 3; ++launch) {
      together.arrive_and_wait();
      // One call in front, so that all ranks start the graph at about the same time.
      all_reduce(rank, rows);
      CheckCuda(cudaEventRecord(begin, rank.stream()), "an event");
      CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
      CheckCuda(cudaEventRecord(end, rank.stream()), "an event");
      rank.Synchronize();
      float milliseconds = 0.0f;
      CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "the time of a graph");
      if (rank.context.device == 0 && launch >= 3) times.push_back(milliseconds * 1e3 / kCalls);
    }
    together.arrive_and_wait();
    cudaGraphExecDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  });
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

std::string Cell(const Times& times) {
  return times.minimum == 0.0 ? fmt::format("{:>17}", "-")
                              : fmt::format("{:>8.2f} {:>8.2f}", times.minimum, times.median);
}

int Main(int size) {
  if (NumGpus() < size) {
    fmt::print("{} GPUs asked for, {} are here\n", size, NumGpus());
    return 1;
  }
  StreamRanksOptions one, two;
  one.one_shot_bytes = std::numeric_limits<int64_t>::max();
  two.one_shot_bytes = 0;
  Gpus one_shot(size, one), two_shot(size, two);
  const auto nccl = Nccl::Load(size);
  std::unique_ptr<Gpus> processes;
  if (nccl != nullptr) processes = std::make_unique<Gpus>(size, StreamRanksOptions(), size);
  const auto by_rank = [](RankOfGpu& rank, const Tensor& rows) { rank.comm->AllReduce(rows); };
  fmt::print("{} GPUs, bf16, microseconds of a call in a graph: minimum and median\n", size);
  fmt::print("{:>10} {:>17} {:>17} {:>17} {:>17} {:>8}\n", "bytes", "one-shot", "two-shot", "NCCL",
             "processes", "GB/s");
  for (int64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= bytes < (4 << 20) ? 2 : 4) {
    // Far beyond the sizes that it is used for, one-shot only takes time.
    Times first, other, apart;
    if (bytes <= int64_t{4} << 20) first = Measure(one_shot, bytes, by_rank);
    const Times second = Measure(two_shot, bytes, by_rank);
    if (nccl != nullptr) {
      other = Measure(two_shot, bytes, [&](RankOfGpu& rank, const Tensor& rows) {
        nccl->AllReduce(rank.comm->rank(), rows, rank.stream());
      });
      apart = Measure(*processes, bytes, by_rank);
    }
    const double best =
        first.minimum == 0.0 ? second.minimum : std::min(first.minimum, second.minimum);
    fmt::print("{:>10} {} {} {} {} {:>8.1f}\n", bytes, Cell(first), Cell(second), Cell(other),
               Cell(apart), static_cast<double>(bytes) / best * 1e-3);
  }
  const Status failure = ops::cuda::TakeFailure();
  if (!failure.ok()) fmt::print("{}\n", failure.ToString());
  return failure.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tandem::cuda_ranks

int main(int argc, char** argv) {
  return tandem::cuda_ranks::Main(argc > 1 ? std::atoi(argv[1]) : 2);
}
