// Backend: a device's memory, its way of packing weights, and its Ops. Owned by the program for as
// long as anything made by it lives; used by the thread that loads and then by the executor's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"
#include "ops/random_words.h"
#include "ops/round.h"
#include "tensor/quant_scheme.h"

namespace tandem::ops {

// Work that was enqueued once and recorded, so that enqueuing it again costs one launch.
class Graph {
 public:
  virtual ~Graph() = default;
};

// A piece of a linear weight as a model stores it, in host or in the backend's memory.
struct LinearPart {
  Tensor weight;     // [rows, cols], or [rows, cols / 2] where two elements share a byte
  Tensor bias = {};  // [rows]; empty: zeros
  // Quantized: factors of the elements, fp32: [1], [rows] or [row blocks, column blocks].
  Tensor scale = {};
  Tensor zero = {};           // zero points, as `scale`, of the type of the elements
  Tensor input_factors = {};  // [cols] fp32
  Tensor input_order = {};    // [cols] int32
  QuantScheme scheme = {};    // of the weight

  int64_t rows() const { return weight.dim(0); }
  int64_t cols() const { return weight.dim(1) * scheme.elements_per_byte(); }
};

// The parts of one product together.
struct StackedParts {
  WeightFormat format;  // of the first; `dtype` is that of the elements
  bool alike = true;    // all parts are stored in it
  int64_t rows = 0;
  int64_t cols = 0;
  bool has_bias = false;
};
// A CHECK that the parts are alike and complete: of one width and, unless they are kept plain, of
// one element type and one scheme, with scales exactly where they are quantized. Every PackLinear
// begins with it.
StackedParts Stack(std::span<const LinearPart> parts, const WeightFormat& kept);

// Row `row` of the weight as the product with unchanged inputs has it: elements times their scales,
// in the order of the inputs and times their factors. Host memory. out: [cols]
void WidenRow(const LinearPart& part, int64_t row, float* out);

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu avx512_bf16, 2 threads"
  virtual std::string Describe() const = 0;
  virtual Device device() const = 0;
  // A thread other than the one that made the backend calls this before using it.
  virtual void BindThread() const {}
  virtual Ops& ops() = 0;
  virtual RoundOps& round() = 0;
  // Runs `work`, which uses the ops with the sizes that will be frequent. In it an op may allocate,
  // wait, and try several ways of computing its result; from then on it uses the fastest that it
  // found. Called before graphs are recorded: a graph keeps what its ops used when it was recorded.
  // (Ops that are recorded in `work` neither wait nor try.)
  virtual void WarmUp(const std::function<void()>& work) { work(); }

  // Zeroed memory; RESOURCE_EXHAUSTED says how much was asked for.
  virtual Result<Buffer> Allocate(size_t bytes) = 0;
  virtual void CopyToDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyToHost(void* to, const void* from, size_t bytes) = 0;
  // Bytes of the random words from the row's start; `out` lies in the backend's memory.
  virtual void FillRandom(const Tensor& out, const RandomWords& words) = 0;
  // Memory that may still be taken without pushing others out. Any thread, bound or not.
  virtual int64_t FreeBytes() const = 0;

  // The backend's stream: the ops and the calls below run in the order in which they are enqueued.
  // A backend that has finished when a call returns (the CPU) needs none of this; the defaults are
  // right for it.
  //
  // Ops and copies return nothing. A device that fails (lost, or refusing memory) keeps its first
  // failure: from then on every WaitFor and Synchronize returns it, and results computed since are
  // void. UNAVAILABLE, or RESOURCE_EXHAUSTED for memory; the message says what failed.

  // Host memory that the device can read and write directly, as the asynchronous copies need it.
  virtual Result<Buffer> AllocatePinned(size_t bytes) { return Allocate(bytes); }
  // `from` (`to`) is pinned and must not be touched until the copy has run.
  virtual void EnqueueCopyToDevice(void* to, const void* from, size_t bytes) {
    CopyToDevice(to, from, bytes);
  }
  virtual void EnqueueCopyToHost(void* to, const void* from, size_t bytes) {
    CopyToHost(to, from, bytes);
  }
  // Copies that run beside the stream, as between a cache and its offloaded blocks. They wait for
  // nothing on the stream: the caller knows that work enqueued there before no longer writes
  // `from` nor uses `to`. Copies to the host run in their order, after all copies to the device
  // that were joined. Copies to the device run in theirs, after the copies to the host enqueued
  // before them. JoinSideCopies: work enqueued on the stream from now on waits for them, on the
  // device. Host memory is pinned and must not be touched until then.
  virtual void EnqueueSideCopyToHost(void* to, const void* from, size_t bytes) {
    CopyToHost(to, from, bytes);
  }
  virtual void EnqueueSideCopyToDevice(void* to, const void* from, size_t bytes) {
    CopyToDevice(to, from, bytes);
  }
  virtual void JoinSideCopies() {}

  // Marks the end of the work enqueued so far; there are kNumMarks marks, used in turn.
  virtual void Mark(int /*mark*/) {}
  // Returns when the work before the mark has run, or when the device has failed.
  virtual Status WaitFor(int /*mark*/) { return {}; }
  // Returns when all work has run, or when the device has failed.
  virtual Status Synchronize() { return {}; }
  // Device time in seconds between two marks that have both been waited for; 0 if the backend does
  // not measure it.
  virtual double SecondsBetween(int /*from*/, int /*to*/) { return 0.0; }
  static constexpr int kNumMarks = 16;

  // Records the work that `enqueue` enqueues, without running it. Null if the backend does not
  // record or has no memory for the recording: the caller then enqueues the work each time.
  virtual std::unique_ptr<Graph> Capture(const std::function<void()>& /*enqueue*/) { return {}; }
  virtual void Launch(const Graph& /*graph*/) {}

  // Packs the rows of `parts`, stacked, as `kept`: in the parts' own format; or quantized from a
  // plain one, each row with a scale that maps its maximum to the element type's; or plain, made
  // so by WidenRow and rounded. Other combinations are CheckFormat's errors.
  virtual Result<LinearWeight> PackLinear(std::span<const LinearPart> parts,
                                          const WeightFormat& kept) = 0;
  // ExpertWeights::table of packed weights, without which Experts does not run: how a device finds
  // an expert whose number the host does not know. Empty where the host knows it. Packing an expert
  // anew makes the table void.
  virtual Result<Buffer> MakeExpertTable(const ExpertWeights& /*weights*/) { return Buffer{}; }
  // UNIMPLEMENTED names a format that the backend does not keep as `kept`.
  virtual Status CheckFormat(const WeightFormat& stored, const WeightFormat& kept) const = 0;
  // INVALID_ARGUMENT names a size of a model that there are no kernels for, and the largest.
  virtual Status CheckSizes(int64_t /*vocab*/, int64_t /*head_dim*/) const { return {}; }
  // UNIMPLEMENTED names a type that the backend does not keep keys and values in.
  virtual Status CheckKvType(DType /*stored*/) const { return {}; }
  // The scheme under which weights that a file stores under `stored` are kept: the same, or plain
  // (an element times its scale, rounded) if the backend does not compute with it.
  virtual QuantScheme KeptScheme(const QuantScheme& stored) const = 0;
  // Bytes PackLinear will take (weights and scales), for the memory plan.
  virtual int64_t PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) const = 0;

  // Measures the limits of the machine, which takes about a second: bytes per second that all
  // threads together read from memory, and operations per second (a multiply-add is 2) of matrix
  // products with weights of type `dtype`. 0 if there is no memory for the measurement.
  virtual double MeasureReadBandwidth() = 0;
  virtual double MeasureMatrixPeak(DType dtype) = 0;
};

struct CpuOptions {
  int num_threads = 0;  // 0: one per core
  bool pin_threads = true;
  int first_core = 0;        // of those that threads are pinned to: as ThreadPool has it
  std::string isa = "auto";  // auto (chosen by a short measurement), scalar, avx2, avx512, amx
};

// INVALID_ARGUMENT when the CPU lacks the asked-for instruction set; the message lists what it has.
Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options);
// Instruction sets this CPU can run, slowest first: a test is instantiated over them.
std::vector<std::string> SupportedCpuIsas();

struct CudaOptions {
  int device = 0;
  // A row's result depends on that row alone, as on the CPU: the same arithmetic for every number
  // of rows, at the cost of the faster variants.
  bool batch_invariant = false;
  // 10 * major + minor; 80 uses only what that generation has, so that tests can run the code for
  // older GPUs. 0: the device's own.
  int max_compute_capability = 0;
};

// UNAVAILABLE when there is no such GPU, no driver, or this program was built without CUDA; the
// message says which.
Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options);
// GPUs this program can use; 0 without a driver or when built without CUDA.
int NumCudaDevices();
// The same ones, in their order.
struct CudaDevice {
  std::string id;    // of this one among all GPUs, in hexadecimal digits
  std::string kind;  // "NVIDIA H200"
};
std::vector<CudaDevice> CudaDevices();

}  // namespace tandem::ops
