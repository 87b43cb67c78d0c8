// Backend: a device's memory, its way of packing weights, and its Ops. Owned by the program for as
// long as anything made by it lives; used by the thread that loads and then by the executor's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"
#include "ops/random_words.h"
#include "ops/round.h"

namespace tandem::ops {

// Work that was enqueued once, kept so that it can be enqueued again at the price of one launch.
class Graph {
 public:
  virtual ~Graph() = default;
};

// A piece of a linear weight as a model stores it, in host or in the backend's memory.
struct LinearPart {
  Tensor weight;      // [rows, cols]
  Tensor bias = {};   // [rows]; empty: zeros
  Tensor scale = {};  // fp8 weights: what an element is multiplied with, [rows] or [1] fp32
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu avx512_bf16, 2 threads"
  virtual std::string Describe() const = 0;
  virtual Device device() const = 0;
  // Another thread than the one that made the backend calls this before it uses it.
  virtual void BindThread() const {}
  virtual Ops& ops() = 0;
  virtual RoundOps& round() = 0;

  // Zeroed memory; RESOURCE_EXHAUSTED says how much was asked for.
  virtual Result<Buffer> Allocate(size_t bytes) = 0;
  virtual void CopyToDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyToHost(void* to, const void* from, size_t bytes) = 0;
  // Bytes of the words' row from its start; `out` lies in the backend's memory.
  virtual void FillRandom(const Tensor& out, const RandomWords& words) = 0;
  // Memory that may still be taken without pushing others out. Any thread, bound or not.
  virtual int64_t FreeBytes() const = 0;

  // The backend's stream: the ops and the calls below run in the order they were enqueued. A
  // backend that has finished when a call returns (the CPU) needs none of this, and the defaults
  // serve it.
  //
  // Ops and copies return nothing. A device that fails (lost, or refusing memory) keeps its first
  // failure: every WaitFor and Synchronize from then on returns it, and what was computed since is
  // worth nothing. UNAVAILABLE, or RESOURCE_EXHAUSTED for memory; the message says what failed.

  // Host memory that the device reads and writes by itself: what the asynchronous copies want.
  virtual Result<Buffer> AllocatePinned(size_t bytes) { return Allocate(bytes); }
  // `from` (`to`) is pinned and stays untouched until the copy has run.
  virtual void EnqueueCopyToDevice(void* to, const void* from, size_t bytes) {
    CopyToDevice(to, from, bytes);
  }
  virtual void EnqueueCopyToHost(void* to, const void* from, size_t bytes) {
    CopyToHost(to, from, bytes);
  }
  // Marks the end of what has been enqueued so far; the mark is one of kNumMarks, used in turn.
  virtual void Mark(int /*mark*/) {}
  // Returns when what stood before the mark has run, or the device has failed.
  virtual Status WaitFor(int /*mark*/) { return {}; }
  // Returns when everything has run, or the device has failed.
  virtual Status Synchronize() { return {}; }
  // Seconds of the device between two marks that have both been waited for; 0 where the backend
  // does not time them.
  virtual double SecondsBetween(int /*from*/, int /*to*/) { return 0.0; }
  static constexpr int kNumMarks = 16;

  // Records what `enqueue` enqueues (it does not run) instead of enqueuing it. Null where the
  // backend records nothing or has no memory for it: the caller then enqueues it each time.
  virtual std::unique_ptr<Graph> Capture(const std::function<void()>& /*enqueue*/) { return {}; }
  virtual void Launch(const Graph& /*graph*/) {}

  // Packs the rows of `parts` (of one width and one dtype) one below the other, kept as `stored`:
  // the parts' own type, or kF8E4M3: each row rounded with a scale that makes its largest value the
  // type's; or, of fp8 parts, what KeptFp8 says. UNIMPLEMENTED names a type that the backend does
  // not compute with.
  virtual Result<LinearWeight> PackLinear(std::span<const LinearPart> parts, DType stored) = 0;
  // What weights that are fp8 already are kept as beside activations of this type: fp8, or that
  // type (an element times its scale, rounded) where the backend does not compute with fp8.
  virtual DType KeptFp8(DType activations) const = 0;
  // Bytes PackLinear will take (weights and scales), for the memory plan.
  virtual int64_t PackedBytes(int64_t rows, int64_t cols, DType stored) const = 0;

  // What the machine can do at most, measured: bytes/s of a read stream over all threads, and
  // multiply-adds (as 2 operations)/s of the matrix path used for `dtype`. Takes about a second. 0
  // where there is no memory to measure with.
  virtual double MeasureReadBandwidth() = 0;
  virtual double MeasureMatrixPeak(DType dtype) = 0;
};

struct CpuOptions {
  int num_threads = 0;  // 0: one a core
  bool pin_threads = true;
  std::string isa = "auto";  // auto (chosen by a short measurement), scalar, avx2, avx512, amx
};

// INVALID_ARGUMENT when the CPU lacks the asked-for instruction set; the message lists what it has.
Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options);
// Instruction sets this CPU can run, slowest first: a test is instantiated over them.
std::vector<std::string> SupportedCpuIsas();

struct CudaOptions {
  int device = 0;
  // A row's result depends on that row alone, as on the CPU: one arithmetic for every number of
  // rows, at the price of the faster ones.
  bool batch_invariant = false;
  // 10 * major + minor; 80: do nothing that older GPUs would have to do in another way, so that
  // tests can run those ways. 0: the device's own.
  int max_compute_capability = 0;
};

// UNAVAILABLE when there is no such GPU, no driver, or this program was built without CUDA; the
// message says which.
Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options);
// GPUs this program can use; 0 without a driver or when built without CUDA.
int NumCudaDevices();

}  // namespace tandem::ops
