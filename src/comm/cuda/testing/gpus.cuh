// GPUs of this machine as ranks, for tests and benchmarks: a stream on each, and threads that use
// them.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/cuda/nccl_ranks.cuh"
#include "comm/cuda/stream_ranks.cuh"
#include "comm/in_process.h"
#include "ops/cuda/device/context.cuh"

namespace tandem::cuda_ranks {

inline int NumGpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

// A rank's GPU, its stream and its communicator; used by a thread whose current GPU it is.
struct RankOfGpu {
  ops::cuda::Context context;
  std::unique_ptr<Communicator> comm;

  cudaStream_t stream() const { return context.stream; }
  void Synchronize() const {
    ops::cuda::CheckCuda(cudaStreamSynchronize(context.stream), "a stream");
  }
  // What `enqueue` enqueues on the stream.
  cudaGraphExec_t Record(const std::function<void()>& enqueue) const {
    ops::cuda::CheckCuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
                         "a capture");
    enqueue();
    cudaGraph_t graph = nullptr;
    ops::cuda::CheckCuda(cudaStreamEndCapture(stream(), &graph), "a capture");
    cudaGraphExec_t exec = nullptr;
    ops::cuda::CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "a graph");
    ops::cuda::CheckCuda(cudaGraphDestroy(graph), "a graph");
    return exec;
  }
};

class Gpus {
 public:
  // GPUs 0 .. size, of which there are enough. `processes`: not 0 for ranks of that many processes,
  // which are threads here.
  explicit Gpus(int size, const StreamRanksOptions& options = {}, int processes = 0) {
    std::vector<ops::cuda::Context> contexts;
    for (int device = 0; device < size; ++device) {
      ops::cuda::Context& context = contexts.emplace_back();
      cudaDeviceProp properties{};
      ops::cuda::CheckCuda(cudaSetDevice(device), "choosing the GPU");
      ops::cuda::CheckCuda(cudaGetDeviceProperties(&properties, device), "its properties");
      context.device = device;
      context.num_sms = properties.multiProcessorCount;
      context.compute_capability = 10 * properties.major + properties.minor;
      ops::cuda::CheckCuda(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking),
                           "a stream");
    }
    auto comms = processes == 0 ? MakeStreamRanks(contexts, options).value()
                                : OfProcesses(contexts, options.stages.count, processes);
    for (size_t rank = 0; rank < contexts.size(); ++rank) {
      ranks_.push_back({contexts[rank], std::move(comms[rank])});
    }
  }
  ~Gpus() {
    for (RankOfGpu& rank : ranks_) rank.comm.reset();
    for (const RankOfGpu& rank : ranks_) cudaStreamDestroy(rank.context.stream);
  }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  std::vector<RankOfGpu>& ranks() { return ranks_; }
  // Runs the ranks, each on a thread of its own, and returns when all have returned.
  void Run(const std::function<void(RankOfGpu&)>& run) {
    std::vector<std::thread> threads;
    for (RankOfGpu& rank : ranks_) {
      threads.emplace_back([&run, &rank] {
        ops::cuda::CheckCuda(cudaSetDevice(rank.context.device), "choosing the GPU");
        run(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static std::vector<std::unique_ptr<Communicator>> OfProcesses(
      std::span<const ops::cuda::Context> contexts, int stages, int processes) {
    auto hosts = MakeInProcessRanks(processes, {.count = processes % stages == 0 ? stages : 1});
    const size_t here = contexts.size() / hosts.size();
    std::vector<std::unique_ptr<Communicator>> comms(contexts.size());
    std::vector<std::thread> threads;
    for (size_t process = 0; process < hosts.size(); ++process) {
      threads.emplace_back([&, process] {
        auto made =
            MakeNcclRanks(contexts.subspan(process * here, here), std::move(hosts[process]), stages)
                .value();
        for (size_t i = 0; i < here; ++i) comms[process * here + i] = std::move(made[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return comms;
  }

  std::vector<RankOfGpu> ranks_;
};

// Memory of the current GPU, zeroed.
class GpuMemory {
 public:
  explicit GpuMemory(size_t bytes) {
    ops::cuda::CheckCuda(cudaMalloc(&data_, bytes), "memory");
    ops::cuda::CheckCuda(cudaMemset(data_, 0, bytes), "clearing memory");
    ops::cuda::CheckCuda(cudaDeviceSynchronize(), "clearing memory");
  }
  ~GpuMemory() { cudaFree(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  // `offset` in bytes.
  Tensor View(DType dtype, Shape shape, int64_t offset = 0) const {
    return {static_cast<std::byte*>(data_) + offset, dtype, shape, {Device::Kind::kCuda, 0}};
  }

 private:
  void* data_ = nullptr;
};

}  // namespace tandem::cuda_ranks
