// WeightStore: the weights that are loaded, so that two engines of one model hold them once. It
// keeps none alive: weights go with the last engine that has them. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "model/weight_loader.h"
#include "runtime/engine.h"

namespace tandem::apps {

class WeightStore {
 public:
  // What decides which weights these are and how they are kept: the folder's files, the formats and
  // the device.
  static std::string KeyOf(const std::filesystem::path& folder, const ModelSpec& spec,
                           const ops::Backend& backend, const AskedFormat& asked);

  // The weights loaded under that key if they serve at least `positions` positions, else null.
  std::shared_ptr<const Weights> Find(const std::string& key, int64_t positions) const;
  void Keep(const std::string& key, const std::shared_ptr<const Weights>& weights);

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::weak_ptr<const Weights>> weights_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::apps
