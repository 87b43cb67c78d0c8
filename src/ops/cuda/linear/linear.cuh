// LinearRunner: products of activations with packed weights on the GPU. Owned by CudaOps; makes its
// workspaces with the object and in ReserveFor, so that Run neither allocates nor waits outside
// WarmUp.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "ops/cuda/device/context.cuh"
#include "ops/cuda/linear/cublas_lt.h"
#include "ops/cuda/linear/linear_rounded.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

struct LinearArgs;
struct RopeJob;

// The input of a product of few rows: rows as they are, or such as LinearAdd leaves.
struct FewRows {
  FewRows(const Tensor& x) : rows(x) {}  // NOLINT(google-explicit-constructor)
  explicit FewRows(const NormedRows& x)
      : rows(x.rows),
        squares(x.HasSum() ? x.squares.As<int64_t>() : nullptr),
        epsilon(x.norm.epsilon),
        are_factors(x.HasSum() && x.rows_are_factors) {}

  Tensor rows;
  const int64_t* squares = nullptr;
  float epsilon = 0.0f;
  // The memory of `rows` holds them as products with weights of 8 bits multiply them
  // (LinearArgs::x_is_factors); no other product takes them.
  bool are_factors = false;
};

class LinearRunner {
 public:
  explicit LinearRunner(const Context& context);
  ~LinearRunner();
  LinearRunner(const LinearRunner&) = delete;
  LinearRunner& operator=(const LinearRunner&) = delete;

  // Makes what products of this weight need beside it; called when it is packed.
  void ReserveFor(const LinearWeight& weight);

  // As Ops::Linear. x and out: bf16 or fp16; out also fp32.
  //
  // Few rows of x stream the weights through our own kernel; many go to cuBLASLt, with x rounded to
  // fp8 or int8 when the weights are; RoundedRunner computes those in fp8 that it is faster at. For
  // shapes that the library does not support, on a machine without it and in a batch-invariant
  // context, other kernels of ours run, with the same bits as the first.
  void Run(const Tensor& x, const LinearWeight& weight, const Tensor& out);

  // activated = silu(gate) * up of the product of x and gate_up, gate rows first, as the product
  // with `down` takes it, which is returned; that product's bits are those after Run and SwiGlu.
  // Returns none and enqueues nothing for many rows of x, odd shapes and factors that gate_up does
  // not take.
  std::optional<FewRows> RunGated(const FewRows& x, const LinearWeight& gate_up,
                                  const LinearWeight& down, const Tensor& activated);
  static bool TakesGated(const FewRows& x, const LinearWeight& gate_up);

  // Whether there are so few rows that their product streams the weights through our own kernels.
  static bool AreFew(const Tensor& rows);
  // Whether the product of few rows with this weight takes x as it is.
  static bool TakesFewRows(const FewRows& x, const LinearWeight& weight);

  // The product of x and `weight`, turned and stored as `job` says; the bits are those of Run and
  // QkvRopeStore, but what is left of keys and values in job.qkv is not said. Returns false and
  // enqueues nothing for many rows of x, odd shapes, factors that the weight does not take, and
  // heads of which not all turns, or in halves.
  bool RunTurned(const FewRows& x, const LinearWeight& weight, const Tensor& qkv,
                 const RopeJob& job);

  // As Ops::LinearAdd where it is added to the residual. Else returns false and enqueues nothing.
  bool RunAdded(const FewRows& x, const LinearWeight& weight, NormedRows& sum);
  bool TakesAdded(const Tensor& x, const LinearWeight& weight, const NormedRows& sum) const;

  // out = the product of x, which TakesFewRows, and `weight`.
  void RunFew(const FewRows& x, const LinearWeight& weight, const Tensor& out);

  // out = the product of silu(gate) * up of gate_up and `weight`; the bits are those of SwiGlu and
  // Run. Returns false and leaves the output undefined where the product does not round its input.
  bool RunSwiGluLinear(const Tensor& gate_up, const LinearWeight& weight, const Tensor& out);

  // As Ops::NormLinear where the product rounds its input. Else returns false and stores
  // nothing of use, but may have added x.delta, which is empty then.
  bool RunNormLinear(NormedRows& x, const LinearWeight& weight, const Tensor& out);

  // As Ops::NormMlp with SwiGLU where both products take rows of int8: what lies between them is
  // never stored in 16 bits, though the bits are those of the ops one after another. inner: [n, 2
  // down.cols], which is not written. Else as RunNormLinear.
  bool RunIntegerMlp(NormedRows& x, const LinearWeight& gate_up, const LinearWeight& down,
                     const Tensor& inner, const Tensor& out);

  // As Backend::WarmUp.
  void WarmUp(const std::function<void()>& work);

 private:
  struct Workspace;

  // Few rows whose columns are whole units of the kernels.
  static bool AreFewWhole(const Tensor& rows);
  LinearArgs ArgsOfFew(const FewRows& x, const LinearWeight& weight, const Tensor& out);
  void LaunchFew(const LinearArgs& args, DType activations, const LinearWeight& weight);
  // x as the weight's columns take it: x itself, or a copy in the workspace.
  Tensor Arranged(const Tensor& x, const LinearWeight& weight);
  void RunArranged(const Tensor& x, const LinearWeight& weight, const Tensor& out);
  void RunOwn(const Tensor& x, const LinearWeight& weight, const Tensor& out);
  bool LibraryTakes(const Tensor& x, const LinearWeight& weight, const Tensor& out) const;
  // Whether Run rounds this input to the weight's type.
  bool RoundsInput(const Tensor& x, const LinearWeight& weight, const Tensor& out) const;
  bool RunLibrary(const Tensor& x, const LinearWeight& weight, const Tensor& out);
  // quantize(first, count, scale, to, scales) rounds `count` rows of the input, from `first` on, as
  // QuantizeActivations does.
  template <typename Quantize>
  bool RunRounded(const LinearWeight& weight, const Tensor& out, const Quantize& quantize);
  // The products of rows that have been rounded; false: not computed.
  bool MultiplyFp8(const LinearWeight& weight, const Tensor& out);
  struct RoundedRows {
    const int8_t* rows = nullptr;  // [tokens, weight.cols]
    const float* scales = nullptr;
    int64_t tokens = 0;
  };
  bool MultiplyIntegers(const LinearWeight& weight, const RoundedRows& x, const Tensor& out);
  // finish(first, count, product) takes the sums of `count` rows, from `first` on.
  template <typename Finish>
  bool MultiplyIntegers(const LinearWeight& weight, const RoundedRows& x, const Finish& finish);
  // The weight's bias in the type the library requires; null without one.
  const void* BiasFor(const LinearWeight& weight, DType output);

  const Context context_;
  std::unique_ptr<Workspace> workspace_;
  // Empty if the library is not used; then no activations are rounded.
  std::unique_ptr<CublasLt> library_;
  std::unique_ptr<const RoundedRunner> rounded_;
};

}  // namespace tandem::ops::cuda
