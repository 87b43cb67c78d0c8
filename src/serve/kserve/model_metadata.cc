#include "serve/kserve/model_metadata.h"

#include <model_config.pb.h>

#include <utility>

#include "serve/kserve/check_request.h"

namespace tandem::serve::kserve {
namespace {

template <typename Tensors>
std::vector<TensorMetadata> Describe(const Tensors& tensors, bool is_batched) {
  std::vector<TensorMetadata> rows;
  for (const auto& tensor : tensors) {
    TensorMetadata row{tensor.name(), TypeOf(tensor.data_type()), {}};
    if (is_batched) row.shape.push_back(-1);
    row.shape.insert(row.shape.end(), tensor.dims().begin(), tensor.dims().end());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

ModelMetadata MetadataOf(const inference::ModelConfig& config) {
  const bool is_batched = config.max_batch_size() > 0;
  return {config.name(), config.platform().empty() ? config.backend() : config.platform(),
          Describe(config.input(), is_batched), Describe(config.output(), is_batched)};
}

}  // namespace tandem::serve::kserve
