// HfReader: a Hugging Face model folder (config.json, and model.safetensors, pytorch_model.bin or
// an index with shards of either) as a WeightSource. Open validates everything that will be read:
// missing shards and tensors, shapes and element types are reported with their file. Weights stay
// mapped; those stored in another floating-point type than the spec's are converted when they are
// read; quantized weights are unpacked by a Layout (docs/formats/quantized_folders.md). Nothing in
// the folder is executed. One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/hf_tensors.h"
#include "checkpoint/layouts/layout.h"
#include "checkpoint/stored/as_dtype.h"
#include "model/config_options.h"
#include "model/family.h"
#include "model/weight_source.h"

namespace tandem {

// The text of the folder's added_tokens.json, as SpecFromHfConfig takes it; empty if there is none.
std::string AddedTokens(const std::filesystem::path& folder);

class HfReader final : public WeightSource {
 public:
  // `dtype`: compute in this type instead of the config's. `options` go over the config's keys.
  static Result<std::unique_ptr<HfReader>> Open(const std::filesystem::path& folder,
                                                std::optional<DType> dtype = std::nullopt,
                                                const ConfigOptions& options = {});

  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override { scratch_.Clear(); }

 private:
  HfReader() = default;
  Status ReadConfig(std::optional<DType> dtype, const ConfigOptions& options);
  Status ReadQuantization(const std::string& config);
  void SettleHead();
  Status SettleSchemes();
  void SettleCacheScales();
  Status SettleDType();
  Status CheckAll() const;
  // For the message about a weight that is not stored as the plain one that it should be: how to
  // read it, if it is quantized.
  std::string HintOfPacked(const std::string& weight) const;
  // The stored tensor that holds a weight, checked for its shape and type.
  Result<Tensor> Find(const TensorSource& source, const WeightId& id) const;
  const Tensor* FindWeight(WeightRole role) const;

  // Of a folder with quantized weights: the scheme under which this one is stored.
  Result<QuantScheme> ReadScheme(const WeightId& id) const;
  // Refuses tensors of products that are not known.
  Status CheckNames() const;
  // Whether the tensors are there that the layout packs.
  bool IsPacked(const StoredMatrix& matrix) const;
  // Whether the layout unpacks this part.
  bool IsUnpacked(const WeightId& id) const;
  StoredMatrix MatrixOf(const WeightId& id) const;
  Result<Tensor> GetUnpacked(const WeightId& id);

  std::filesystem::path folder_;
  const Family* family_ = nullptr;
  ModelSpec spec_;
  const Layout* layout_ = nullptr;  // of quantized weights; null: there are none
  bool config_names_dtype_ = false;
  std::optional<HfTensors> tensors_;  // set by Open
  ScratchBuffers scratch_;
};

}  // namespace tandem
