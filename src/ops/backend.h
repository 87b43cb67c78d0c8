// Backend: a device's memory, its way of packing weights, and its Ops. Owned by the program for as
// long as anything made by it lives; used by the thread that loads and then by the executor's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"

namespace tandem::ops {

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu avx512_bf16, 2 threads"
  virtual std::string Describe() const = 0;
  virtual Device device() const = 0;
  virtual Ops& ops() = 0;

  // Zeroed memory; RESOURCE_EXHAUSTED says how much was asked for.
  virtual Result<Buffer> Allocate(size_t bytes) = 0;
  virtual void CopyToDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyToHost(void* to, const void* from, size_t bytes) = 0;

  // Packs the rows of `parts` ([rows_i, cols], host memory, one dtype) one below the other. `bias`:
  // empty, or as many [rows_i] tensors as parts (an empty one means zeros).
  virtual Result<LinearWeight> PackLinear(std::span<const Tensor> parts,
                                          std::span<const Tensor> bias) = 0;
  // Bytes PackLinear will take, for the memory plan.
  virtual int64_t PackedBytes(int64_t rows, int64_t cols, DType dtype) const = 0;

  // What the machine can do at most, measured: bytes/s of a read stream over all threads, and
  // multiply-adds (as 2 operations)/s of the matrix path used for `dtype`. Takes about a second.
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

}  // namespace tandem::ops
