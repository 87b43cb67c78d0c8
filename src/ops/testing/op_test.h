// Shared by the op tests: the backends to run on, tensors in a backend's memory filled from a seed,
// and comparison with double-precision references. Every test is one list over all backends.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/testing/backend_makers.h"
#include "tensor/convert.h"

namespace tandem::ops {

struct BackendCase {
  std::string name;
  BackendMaker make;
  DType dtype;
  // A row's result has the same bits whatever the other rows are: the CPU always, CUDA by option.
  bool batch_invariant = true;
};

inline void PrintTo(const BackendCase& backend_case, std::ostream* out) {
  *out << backend_case.name;
}

// Every backend of this machine with every type of weights and activations.
inline std::vector<BackendCase> AllBackendCases() {
  std::vector<BackendCase> cases;
  for (const std::string& isa : SupportedCpuIsas()) {
    // Two threads even on one core, so that work is really split; unpinned, because tests run in
    // parallel.
    const auto make = MakerOf(CpuOptions{.num_threads = 2, .pin_threads = false, .isa = isa});
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      cases.push_back({isa + "_" + std::string(DTypeName(dtype)), make, dtype});
    }
  }
  if (NumCudaDevices() > 0) {
    cases.push_back({"cuda_bf16", MakerOf(CudaOptions{}), DType::kBF16, false});
    cases.push_back({"cuda_f16", MakerOf(CudaOptions{}), DType::kF16, false});
    cases.push_back(
        {"cuda_invariant_bf16", MakerOf(CudaOptions{.batch_invariant = true}), DType::kBF16, true});
    cases.push_back(
        {"cuda_invariant_f16", MakerOf(CudaOptions{.batch_invariant = true}), DType::kF16, true});
    cases.push_back({"cuda_as_sm80_bf16", MakerOf(CudaOptions{.max_compute_capability = 80}),
                     DType::kBF16, false});
    cases.push_back({"cuda_as_sm80_invariant_bf16",
                     MakerOf(CudaOptions{.batch_invariant = true, .max_compute_capability = 80}),
                     DType::kBF16, true});
  }
  return cases;
}

// The cases in which a row's bits do not depend on the other rows.
inline std::vector<BackendCase> Invariant(std::vector<BackendCase> cases) {
  std::erase_if(cases, [](const BackendCase& one) { return !one.batch_invariant; });
  return cases;
}

// The cases on a GPU: none on a machine without one.
inline std::vector<BackendCase> OnCuda(std::vector<BackendCase> cases) {
  std::erase_if(cases, [](const BackendCase& one) { return !one.name.starts_with("cuda"); });
  return cases;
}

inline std::string CaseName(const ::testing::TestParamInfo<BackendCase>& info) {
  return info.param.name;
}

// The value of an fp8 (e4m3) element.
inline double Fp8Value(std::byte element) {
  return ToFloat(Float8E4M3{std::to_integer<uint8_t>(element)});
}

// A tensor and the memory it lies in.
struct OwnedTensor {
  Buffer buffer;
  Tensor tensor;
};

class OpTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  Backend& backend() { return *backend_; }
  Ops& ops() { return backend_->ops(); }
  DType dtype() const { return GetParam().dtype; }

  // Filled with NaN bits: an op must write all of its output and read none of it.
  OwnedTensor Poisoned(Shape shape, DType dtype) {
    const size_t bytes = static_cast<size_t>(shape.NumElements()) * SizeOf(dtype);
    Buffer buffer = backend_->Allocate(bytes).value();
    const std::vector<std::byte> poison(bytes, std::byte{0xff});
    backend_->CopyToDevice(buffer.data(), poison.data(), bytes);
    const Tensor view = buffer.View(dtype, shape);
    return {std::move(buffer), view};
  }
  OwnedTensor Random(Shape shape, DType dtype, uint32_t seed, float scale = 1.0f) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(static_cast<size_t>(shape.NumElements()));
    for (float& value : values) value = normal(rng);
    return FromFloats(shape, dtype, values);
  }
  OwnedTensor FromFloats(Shape shape, DType dtype, const std::vector<float>& values) {
    OwnedTensor result = Poisoned(shape, dtype);
    std::vector<std::byte> bytes(static_cast<size_t>(result.tensor.NumBytes()));
    const Tensor host{bytes.data(), dtype, shape, {}};
    ConvertElements({const_cast<float*>(values.data()), DType::kF32, shape, {}}, host);
    backend_->CopyToDevice(result.tensor.data, bytes.data(), bytes.size());
    return result;
  }
  Buffer Ints(const std::vector<int32_t>& values) {
    Buffer buffer = backend_->Allocate(values.size() * sizeof(int32_t)).value();
    backend_->CopyToDevice(buffer.data(), values.data(), values.size() * sizeof(int32_t));
    return buffer;
  }

  std::vector<std::byte> Bytes(const Tensor& tensor) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.NumBytes()));
    backend_->CopyToHost(bytes.data(), tensor.data, bytes.size());
    return bytes;
  }
  std::vector<double> Doubles(const Tensor& tensor) {
    std::vector<std::byte> bytes = Bytes(tensor);
    std::vector<float> floats(static_cast<size_t>(tensor.NumElements()));
    ConvertElements({bytes.data(), tensor.dtype, tensor.shape, {}},
                    {floats.data(), DType::kF32, tensor.shape, {}});
    return {floats.begin(), floats.end()};
  }

  // The relative error of one rounding to `dtype`.
  static double Rounding(DType dtype) {
    return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
  }

  // |actual - expected| <= tolerance * (|expected| + magnitude), everywhere.
  static void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                         double tolerance, double magnitude) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      const double bound = tolerance * (std::abs(expected[i]) + magnitude);
      // Written so that a NaN fails.
      ASSERT_TRUE(std::abs(actual[i] - expected[i]) <= bound)
          << "element " << i << ": " << actual[i] << ", expected " << expected[i] << " within "
          << bound;
    }
  }

 private:
  std::unique_ptr<Backend> backend_ = GetParam().make();
};

}  // namespace tandem::ops
