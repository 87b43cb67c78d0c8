#include "apps/weight_store.h"

#include <fmt/format.h>

#include <system_error>

#include "model/decoder/weights.h"

namespace tandem::apps {

std::string WeightStore::KeyOf(const std::filesystem::path& folder, const ModelSpec& spec,
                               const ops::Backend& backend, const AskedFormat& asked) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(folder, error);
  const auto format = [&](WeightRole role) {
    return DescribeFormat(KeptFormat(spec, role, 0, backend, asked));
  };
  const Device device = backend.device();
  return fmt::format("{}, layers in {}, head in {}, device {}:{}",
                     (error ? folder : canonical).string(), format(WeightRole::kQuery),
                     format(WeightRole::kHead), static_cast<int>(device.kind), device.index);
}

std::shared_ptr<const Weights> WeightStore::Find(const std::string& key, int64_t positions) const {
  const MutexLock lock(mutex_);
  const auto found = weights_.find(key);
  if (found == weights_.end()) return nullptr;
  std::shared_ptr<const Weights> weights = found->second.lock();
  return weights != nullptr && weights->max_positions >= positions ? weights : nullptr;
}

void WeightStore::Keep(const std::string& key, const std::shared_ptr<const Weights>& weights) {
  const MutexLock lock(mutex_);
  std::erase_if(weights_, [](const auto& row) { return row.second.expired(); });
  weights_[key] = weights;
}

}  // namespace tandem::apps
