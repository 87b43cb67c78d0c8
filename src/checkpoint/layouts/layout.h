// Layout: how a tool packs a quantized matrix into the tensors of a Hugging Face folder. A layout
// checks them when the folder is opened, without unpacking the elements, and makes of them the
// parts that QuantScheme describes: elements along a row, the first of two in the lower half of a
// byte. Layouts have no state: safe on any thread. docs/formats/quantized_folders.md lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/stored/as_dtype.h"
#include "model/hf_quantization.h"
#include "model/weight_parts.h"
#include "tensor/tensor.h"

namespace tandem {

// The tensors of a folder by name.
class StoredTensors {
 public:
  virtual ~StoredTensors() = default;
  // Null if there is none.
  virtual const Tensor* FindStored(const std::string& name) const = 0;
  // Where the tensor is, or should be: `FILE: tensor "NAME"`.
  virtual std::string PlaceOf(const std::string& name) const = 0;
};

// A matrix as a folder stores it; where a family fuses weights, of all of them; where a tensor
// stacks the experts of a layer, that of one expert. A cheap handle, valid as long as the tensors.
class StoredMatrix {
 public:
  StoredMatrix(const StoredTensors& tensors, std::string name, int64_t rows, int64_t columns,
               std::optional<int64_t> expert = std::nullopt)
      : tensors_(&tensors),
        name_(std::move(name)),
        rows_(rows),
        columns_(columns),
        expert_(expert) {}

  // Of its tensors, without their suffixes.
  const std::string& name() const { return name_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  // The tensor NAME + suffix, of all experts, or null.
  const Tensor* Find(std::string_view suffix) const;
  std::string PlaceOf(std::string_view suffix) const;
  // NOT_FOUND names the tensor; INVALID_ARGUMENT one that does not have the expert.
  Result<Tensor> Get(std::string_view suffix) const;
  // Of this type and shape, else an error that names the tensor.
  Result<Tensor> Get(std::string_view suffix, DType dtype, const Shape& shape) const;
  // Scales of any floating-point type (or of type `dtype`), positive.
  Result<Tensor> GetScales(std::string_view suffix, const Shape& shape,
                           DType dtype = DType::kF32) const;

 private:
  const StoredTensors* tensors_;
  std::string name_;  // "model.layers.0.mlp.up_proj"
  int64_t rows_;
  int64_t columns_;
  std::optional<int64_t> expert_;
};

class Layout {
 public:
  virtual ~Layout() = default;

  // Suffix of the tensor with the elements: without it, or where it is floating-point, the weight
  // is not quantized.
  virtual std::string_view elements() const = 0;
  // Whether it reads tensors that stack the experts of a layer. Each of them has its rows in order,
  // also where tensors of plain weights are transposed.
  virtual bool stacks_experts() const { return false; }
  // Suffixes of tensors that only some layouts read and that change the results: those it reads.
  virtual std::span<const std::string_view> optional_suffixes() const { return {}; }
  // The scheme of a quantized matrix: `described`, changed to what is stored of it. Checks every
  // tensor that Unpack reads; errors name file and tensor.
  virtual Result<QuantScheme> Check(const StoredMatrix& matrix,
                                    const QuantScheme& described) const = 0;
  // A part of a matrix that Check gave `scheme`, with all stored rows: a view of the file or in
  // `scratch`.
  Result<Tensor> Unpack(const StoredMatrix& matrix, const QuantScheme& scheme, WeightPart part,
                        ScratchBuffers& scratch) const;

 protected:
  virtual Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& scheme,
                                  ScratchBuffers& scratch) const = 0;
  virtual Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                                ScratchBuffers& scratch) const = 0;
  // By default a layout stores neither of these.
  virtual Result<Tensor> Zeros(const StoredMatrix& matrix, const QuantScheme& scheme,
                               ScratchBuffers& scratch) const;
  virtual Result<Tensor> InputOrder(const StoredMatrix& matrix, const QuantScheme& scheme,
                                    ScratchBuffers& scratch) const;
  // By default of the part's own name.
  virtual Result<Tensor> InputFactors(const StoredMatrix& matrix, ScratchBuffers& scratch) const;
  virtual Result<Tensor> InputScale(const StoredMatrix& matrix, ScratchBuffers& scratch) const;
};

// Null for Packing::kNone.
const Layout* FindLayout(Packing packing);

}  // namespace tandem
