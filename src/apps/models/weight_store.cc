#include "apps/models/weight_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "model/decoder/weights.h"

namespace tandem::apps {

namespace {

// The files at a path with their sizes and times: a folder that has been written anew is another.
std::string FilesAt(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  const auto add = [&](const fs::path& file) {
    std::error_code ignored;
    const auto written = fs::last_write_time(file, ignored).time_since_epoch().count();
    const auto bytes = fs::file_size(file, ignored);
    files.push_back(fmt::format("{}:{}:{}", file.filename().string(), bytes, written));
  };
  if (!fs::is_directory(path, error)) {
    add(path);
  } else {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->is_regular_file(error)) add(entry->path());
    }
  }
  std::sort(files.begin(), files.end());
  return fmt::format("{}", fmt::join(files, ","));
}

}  // namespace

std::string WeightStore::KeyOf(const std::filesystem::path& folder, const ModelSpec& spec,
                               const ops::Backend& backend, const AskedFormat& asked) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(folder, error);
  const auto format = [&](WeightRole role) {
    return DescribeFormat(KeptFormat(spec, role, 0, backend, asked));
  };
  const Device device = backend.device();
  const std::filesystem::path& path = error ? folder : canonical;
  // The spec also depends on what people say of the folder.
  return fmt::format("{} ({}), layers in {}, head in {}, device {}:{}, {}", path.string(),
                     FilesAt(path), format(WeightRole::kQuery), format(WeightRole::kHead),
                     static_cast<int>(device.kind), device.index, SpecToJson(spec));
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
