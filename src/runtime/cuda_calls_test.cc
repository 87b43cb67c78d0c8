// Steps on a GPU allocate nothing and wait only for the mark of an earlier step: the calls of the
// CUDA runtime are counted over some hundred steps with drafts, once every graph is recorded.
//
// The linker redirects the backend's calls to the wrappers here (--wrap; the runtime is linked
// statically, so that every call passes through them), and tools/check_cuda_calls.py checks that
// the backend calls no unwrapped function that could allocate or wait. cuBLASLt has its own
// runtime: its workspace is ours, and its products are recorded into graphs, which refuse waiting
// calls. On the host operator new is counted on every thread; the driver's own use of malloc is
// not.
#include <cuda_runtime_api.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <new>

#include "runtime/testing/steady_engine.h"

namespace {

struct Calls {
  std::atomic<int64_t> host_allocations{0};
  std::atomic<int64_t> allocations{0};  // of device and pinned memory, and the calls that free it
  std::atomic<int64_t> made{0};         // streams, events, graphs
  std::atomic<int64_t> synchronizations{0};
  std::atomic<int64_t> mark_waits{0};
  std::atomic<int64_t> copies{0};
  std::atomic<int64_t> graph_launches{0};
};
Calls calls;

// Where the first operator new since counting began was called, to be reported.
struct FirstAllocation {
  void* frames[32];
  int depth = 0;
};
FirstAllocation first_allocation;

void CountHostAllocation() {
  if (++calls.host_allocations != 1) return;
  first_allocation.depth = backtrace(first_allocation.frames, 32);
}

// A copy from or to memory that is not pinned waits.
bool IsPageable(const void* memory) {
  cudaPointerAttributes attributes{};
  return cudaPointerGetAttributes(&attributes, memory) != cudaSuccess ||
         attributes.type == cudaMemoryTypeUnregistered;
}

void CountCopy(const void* to, const void* from) {
  ++(IsPageable(to) || IsPageable(from) ? calls.synchronizations : calls.copies);
}

}  // namespace

#define TANDEM_WRAP(name, parameters, arguments, count) \
  extern "C" cudaError_t __real_##name parameters;      \
  extern "C" cudaError_t __wrap_##name parameters;      \
  extern "C" cudaError_t __wrap_##name parameters {     \
    count;                                              \
    return __real_##name arguments;                     \
  }

TANDEM_WRAP(cudaMalloc, (void** data, size_t bytes), (data, bytes), ++calls.allocations)
TANDEM_WRAP(cudaMallocHost, (void** data, size_t bytes), (data, bytes), ++calls.allocations)
TANDEM_WRAP(cudaFree, (void* data), (data), ++calls.allocations)
TANDEM_WRAP(cudaFreeHost, (void* data), (data), ++calls.allocations)
TANDEM_WRAP(cudaMemGetInfo, (size_t* free, size_t* total), (free, total), ++calls.synchronizations)
TANDEM_WRAP(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags),
            ++calls.made)
TANDEM_WRAP(cudaStreamDestroy, (cudaStream_t stream), (stream), ++calls.made)
TANDEM_WRAP(cudaEventCreate, (cudaEvent_t * event), (event), ++calls.made)
TANDEM_WRAP(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags),
            ++calls.made)
TANDEM_WRAP(cudaEventDestroy, (cudaEvent_t event), (event), ++calls.made)
TANDEM_WRAP(cudaGraphInstantiate,
            (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
            (exec, graph, flags), ++calls.made)
TANDEM_WRAP(cudaGraphExecDestroy, (cudaGraphExec_t exec), (exec), ++calls.made)
TANDEM_WRAP(cudaStreamSynchronize, (cudaStream_t stream), (stream), ++calls.synchronizations)
TANDEM_WRAP(cudaEventSynchronize, (cudaEvent_t event), (event), ++calls.mark_waits)
TANDEM_WRAP(cudaMemcpyAsync,
            (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
            (to, from, bytes, kind, stream), CountCopy(to, from))
TANDEM_WRAP(cudaMemcpy2DAsync,
            (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
             size_t height, cudaMemcpyKind kind, cudaStream_t stream),
            (to, to_pitch, from, from_pitch, width, height, kind, stream), CountCopy(to, from))
TANDEM_WRAP(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream),
            ++calls.graph_launches)

// Not inlined: the compiler would hold a free() beside a new against us.
[[gnu::noinline]] void* operator new(size_t bytes) {
  CountHostAllocation();
  if (void* data = std::malloc(bytes == 0 ? 1 : bytes)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  CountHostAllocation();
  const auto unit = static_cast<size_t>(alignment);
  if (void* data = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace tandem {
namespace {

constexpr int kSteps = 500;
// Number of steps without a new graph or product after which no more are expected, and the most
// steps to get there.
constexpr int kQuietSteps = 100;
constexpr int kMostWarmUpSteps = 600;
// The sequences are long enough even when every draft is accepted.
static_assert((kMostWarmUpSteps + kSteps) * 5 < kSteadyTokens);

struct CudaCase {
  std::string name;
  ops::CudaOptions options;
  int32_t steps_in_flight = 0;
  int ranks = 1;
};

std::vector<CudaCase> CudaCases() {
  if (ops::NumCudaDevices() == 0) return {};
  return {{"in_turn", {}, 0},
          {"one_in_flight", {}, 1},
          {"invariant_one_in_flight", {.batch_invariant = true}, 1},
          {"two_ranks_in_turn", {}, 0, 2},
          {"two_ranks_one_in_flight", {}, 1, 2}};
}

class CudaCallsTest : public testing::TestWithParam<CudaCase> {
 protected:
  // Runs until no more graphs are recorded and no more algorithms are looked up.
  static void WarmUp(Engine& engine, Event& event) {
    int quiet = 0;
    for (int i = 0; i < kMostWarmUpSteps && quiet < kQuietSteps; ++i) {
      const int64_t made = calls.made + calls.host_allocations;
      StepAndRead(engine, event);
      quiet = calls.made + calls.host_allocations == made ? quiet + 1 : 0;
    }
    ASSERT_EQ(quiet, kQuietSteps) << "graphs are still being recorded";
  }
};

TEST_P(CudaCallsTest, SteadyStepsAllocateNothingAndWaitForMarksAlone) {
  const int ranks = GetParam().ranks;
  if (ops::NumCudaDevices() < ranks) GTEST_SKIP() << "needs " << ranks << " GPUs";
  std::vector<std::unique_ptr<ops::Backend>> backends;
  std::vector<ops::Backend*> gpus;
  for (int rank = 0; rank < ranks; ++rank) {
    ops::CudaOptions cuda = GetParam().options;
    cuda.device = rank;
    gpus.push_back(backends.emplace_back(ops::MakeCudaBackend(cuda).value()).get());
  }
  SteadyClock clock;
  EngineOptions options;
  options.steps_in_flight = GetParam().steps_in_flight;
  options.executor = ExecutorKind::kDevice;
  const auto engine = MakeSteadyEngine(options, gpus, clock);
  Event event;
  WarmUp(*engine, event);
  // Checks the counters: all of these calls have been made by now.
  for (const auto* count :
       {&calls.host_allocations, &calls.allocations, &calls.made, &calls.synchronizations,
        &calls.mark_waits, &calls.copies, &calls.graph_launches}) {
    EXPECT_GT(*count, 0);
  }

  const EngineStats before = engine->Stats();
  for (auto* count :
       {&calls.host_allocations, &calls.allocations, &calls.made, &calls.synchronizations,
        &calls.mark_waits, &calls.copies, &calls.graph_launches}) {
    *count = 0;
  }
  for (int i = 0; i < kSteps; ++i) StepAndRead(*engine, event);
  const int64_t host_allocations = calls.host_allocations;
  const EngineStats after = engine->Stats();
  std::cout << kSteps << " steps: " << host_allocations << " times operator new, "
            << calls.allocations << " allocations, " << calls.made
            << " streams, events and graphs made, " << calls.synchronizations
            << " synchronizations, " << calls.mark_waits << " waits for a mark, " << calls.copies
            << " copies, " << calls.graph_launches << " graphs launched\n";
  EXPECT_EQ(host_allocations, 0);
  if (host_allocations > 0) {
    backtrace_symbols_fd(first_allocation.frames, first_allocation.depth, STDOUT_FILENO);
  }
  EXPECT_EQ(calls.allocations, 0);
  EXPECT_EQ(calls.made, 0);
  EXPECT_EQ(calls.synchronizations, 0);
  EXPECT_LE(calls.mark_waits, ranks * kSteps);
  EXPECT_GE(calls.graph_launches, ranks * kSteps);
  EXPECT_EQ(after.steps - before.steps, kSteps);
  EXPECT_EQ(after.running, 4);
  EXPECT_GT(after.drafts_proposed - before.drafts_proposed, kSteps);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCallsTest);
INSTANTIATE_TEST_SUITE_P(Backends, CudaCallsTest, testing::ValuesIn(CudaCases()),
                         [](const testing::TestParamInfo<CudaCase>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace tandem
