#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "ops/cuda/device/random_words.cuh"
#include "ops/cuda/device/stopwatch.cuh"
#include "ops/cuda/linear/cublas_lt.h"
#include "ops/cuda/linear/linear_kernels.cuh"
#include "ops/cuda/linear/measure.cuh"

namespace tandem::ops::cuda {
namespace {

// Much larger than the caches.
constexpr size_t kReadBytes = size_t{4} << 30;
constexpr int kPasses = 8;
constexpr int kReadThreads = 512;
constexpr int kReadsAhead = 8;

constexpr int64_t kMatrixSize = 8192;
constexpr size_t kLibraryBytes = size_t{64} << 20;

// Null if it is refused: then nothing is measured.
struct DeviceMemory {
  explicit DeviceMemory(size_t bytes) {
    if (cudaMalloc(&data, bytes) != cudaSuccess) cudaGetLastError();
  }
  ~DeviceMemory() { cudaFree(data); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data = nullptr;
};

// The minimum time of `enqueue` in seconds.
double BestSeconds(cudaStream_t stream, const std::function<void()>& enqueue) {
  Stopwatch watch;
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) {
    watch.Start(stream);
    enqueue();
    watch.Stop(stream);
    best = std::min(best, watch.Seconds());
  }
  return best;
}

// Reads everything; the result is never needed, but the compiler does not know that.
__global__ void __launch_bounds__(kReadThreads)
    ReadKernel(const uint4* data, int64_t count, uint32_t* out) {
  const int64_t stride = int64_t{gridDim.x} * kReadThreads;
  uint32_t all = 0;
  int64_t i = int64_t{blockIdx.x} * kReadThreads + threadIdx.x;
  for (; i + (kReadsAhead - 1) * stride < count; i += kReadsAhead * stride) {
    uint4 words[kReadsAhead];
#pragma unroll
    for (int j = 0; j < kReadsAhead; ++j) words[j] = LoadOnce(data + i + j * stride);
#pragma unroll
    for (const uint4& word : words) all ^= word.x ^ word.y ^ word.z ^ word.w;
  }
  for (; i < count; i += stride) all ^= LoadOnce(data + i).x;
  if (all == 0x2545f491u) *out = all;
}

// Random numbers of 0.5 .. 1: sign and mantissa vary. Equal operands would draw less power, and
// clock higher, than a model's.
void Fill(const Context& context, void* data, DType dtype) {
  uint64_t keep = 0x807f807f807f807fu, set = 0x3f003f003f003f00u;  // bf16
  if (dtype == DType::kF16) keep = 0x83ff83ff83ff83ffu, set = 0x3800380038003800u;
  if (dtype == DType::kF8E4M3) keep = 0x8787878787878787u, set = 0x3030303030303030u;
  FillRandomWords(context, data, kMatrixSize * kMatrixSize * static_cast<int64_t>(SizeOf(dtype)),
                  {.key = 1, .keep = keep, .set = set});
}

}  // namespace

double MeasureReadBandwidth(const Context& context) {
  size_t free = 0;
  size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "the free memory");
  const size_t bytes = std::min(kReadBytes, free / 2) / 16 * 16;
  const DeviceMemory data(bytes + 16);
  if (data.data == nullptr) return 0.0;
  CheckCuda(cudaMemsetAsync(data.data, 0x5a, bytes + 16, context.stream), "filling memory");
  const double seconds =
      BestSeconds(context.stream, [&] { EnqueueRead(context, data.data, bytes + 16); });
  return static_cast<double>(bytes) / seconds;
}

void EnqueueRead(const Context& context, void* data, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes / 16) - 1;
  auto* const words = static_cast<uint4*>(data);
  const auto blocks = static_cast<unsigned>(context.num_sms * 4);
  ReadKernel<<<blocks, kReadThreads, 0, context.stream>>>(
      words, count, reinterpret_cast<uint32_t*>(words + count));
  CheckLaunch("reading memory");
}

double MeasureMatrixPeak(const Context& context, DType dtype) {
  TANDEM_CHECK(dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF8E4M3,
               "a type that the GPU multiplies");
  constexpr auto kElements = static_cast<size_t>(kMatrixSize * kMatrixSize);
  const DeviceMemory x(kElements * SizeOf(dtype));
  const DeviceMemory weight(kElements * SizeOf(dtype));
  const DeviceMemory out(kElements * sizeof(Bf16));
  const DeviceMemory workspace(kLibraryBytes);
  for (const DeviceMemory* memory : {&x, &weight, &out, &workspace}) {
    if (memory->data == nullptr) return 0.0;
  }
  Fill(context, x.data, dtype);
  Fill(context, weight.data, dtype);
  const std::unique_ptr<CublasLt> library = CublasLt::Load(context, workspace.data, kLibraryBytes);
  const auto size = static_cast<int>(kMatrixSize);
  // Without the library our own kernels are the best; they multiply fp8 as bf16.
  const auto own = [&] {
    const LinearArgs args{.x = x.data,
                          .weight = weight.data,
                          .scales = nullptr,
                          .bias = nullptr,
                          .out = out.data,
                          .tokens = size,
                          .rows = size,
                          .cols = size,
                          .pitch = size,
                          .segment = SegmentCols(size),
                          .float_out = false};
    dtype == DType::kF16 ? LaunchTiled<__half, __half>(context, args)
                         : LaunchTiled<Bf16, Bf16>(context, args);
  };
  const auto multiply = [&] {
    if (library == nullptr) return false;
    return library->Run({.input = dtype,
                         .output = dtype == DType::kF16 ? DType::kF16 : DType::kBF16,
                         .tokens = size,
                         .rows = size,
                         .cols = size,
                         .pitch = size,
                         .x = x.data,
                         .weight = weight.data,
                         .out = out.data});
  };
  const bool by_library = multiply();
  if (!by_library && dtype == DType::kF8E4M3) return MeasureMatrixPeak(context, DType::kBF16);
  const double seconds = BestSeconds(context.stream, [&] {
    if (by_library) {
      multiply();
    } else {
      own();
    }
  });
  return 2.0 * size * size * size / seconds;
}

}  // namespace tandem::ops::cuda
