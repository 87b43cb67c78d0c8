// The inputs of a layer's products, as data: which weights read each, and which weight before them
// can take over a scale of each of its columns (SmoothQuant, AWQ) without changing the result. Pure
// functions of the spec.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/weight_roles.h"

namespace tandem {

struct InputId {
  InputGroup group = InputGroup::kNone;
  int64_t expert = 0;  // of kExpertOut
  auto operator<=>(const InputId&) const = default;
};

struct LayerInput {
  InputId id;
  int64_t columns = 0;
  // The quantizable weights that read it: those that are packed into one product together, and
  // those of each expert apart.
  std::vector<std::vector<WeightId>> products;
  // Products that read it and are never quantized: routers, gates of shared experts. Their weights
  // take the scales too, which are powers of two then, so that no bit of theirs changes.
  std::vector<WeightRole> plain;
  // None where scales would change what others read: where the input is the residual stream itself,
  // or comes from a function that is not linear.
  std::optional<WeightRole> absorber;
};

// Every input of the layer's quantizable products, in the order of a forward pass. Those of a layer
// whose attention and MLP read one norm are one.
std::vector<LayerInput> InputsOf(const ModelSpec& spec, int64_t layer);
// UNIMPLEMENTED names a quantizable product that is in no InputsOf, and what quantizes without
// calibration.
Status CheckCalibrated(const ModelSpec& spec);
// The input that a weight reads; of kNone for what is no product of a layer.
InputId InputOf(const ModelSpec& spec, const WeightId& id);
// The absorber's row (or element, of a norm) that gives column `column` of an input. Query heads
// that read one key-value head have inputs of the same row, which must have one scale.
int64_t AbsorberRow(const ModelSpec& spec, InputGroup group, int64_t layer, int64_t column);
// The scales of an input's columns (`scales`) by the rows of the absorber, which has `rows`.
std::vector<float> AbsorberScales(const ModelSpec& spec, InputGroup group, int64_t layer,
                                  int64_t rows, std::span<const float> scales);

}  // namespace tandem
