// QuantizedSource: the weights of a plain source, quantized as they are read. Owns its scratch
// memory; used by one thread, which lends its pool.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/stored/as_dtype.h"
#include "model/weight_source.h"
#include "quantize/layer_calibration.h"
#include "quantize/recipe.h"

namespace tandem {

// What a QuantizedSource of a plain model with this spec tells of itself.
ModelSpec QuantizedSpec(const ModelSpec& plain, const QuantizeRecipe& recipe);

class QuantizedSource final : public WeightSource {
 public:
  // Of one layer; called again only when another layer was asked for since. Null for recipes that
  // calibrate nothing.
  using CalibrationOf = std::function<Result<LayerCalibration>(int64_t layer)>;

  QuantizedSource(WeightSource& plain, const QuantizeRecipe& recipe, CalibrationOf calibration,
                  ThreadPool& pool);

  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override;
  Status Finish() override { return plain_.Finish(); }

 private:
  Status LoadCalibration(int64_t layer);
  // Divisors of the weight's rows (of a norm: its elements), for the product that reads its
  // outputs.
  const std::vector<float>& OutputScales(const WeightId& id);
  // Factors of the weight's columns; null: none.
  const std::vector<float>* InputScales(const WeightId& id) const;
  Result<Tensor> Rounded(const WeightId& id);
  Result<Tensor> Divided(const WeightId& id);
  Result<Tensor> Multiplied(const WeightId& id, const std::vector<float>& scales);

  WeightSource& plain_;
  const QuantizeRecipe recipe_;
  const CalibrationOf calibration_of_;
  ThreadPool& pool_;
  ModelSpec spec_;
  int64_t layer_ = -1;  // of the calibration
  LayerCalibration calibration_;
  std::vector<LayerInput> inputs_;  // of the layer
  std::vector<float> output_scales_;
  ScratchBuffers scratch_;
};

}  // namespace tandem
