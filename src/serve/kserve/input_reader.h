// InputReader: the inputs of one batch entry by name, as values. It remembers what was read, so
// that a model can refuse the inputs it knows nothing about instead of ignoring them. Owned by the
// code that reads one request.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

class InputReader {
 public:
  // `request` has been checked, has `batch` entries, and outlives the reader.
  InputReader(const InferRequest& request, int64_t batch, int64_t entry)
      : request_(request), batch_(batch), entry_(entry) {}

  // The entry's first element; none if the input was not given or has no elements.
  std::optional<int64_t> Int(std::string_view name);
  std::optional<uint64_t> Unsigned(std::string_view name);
  std::optional<double> Float(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  bool Bool(std::string_view name, bool otherwise = false);

  // All elements of the entry.
  std::vector<int64_t> Ints(std::string_view name);
  std::vector<float> Floats(std::string_view name);
  std::vector<std::string> Strings(std::string_view name);
  // The same without empty ones.
  std::vector<std::string> Words(std::string_view name);

  // Whether the entry has elements of that input. Marks it as read.
  bool Has(std::string_view name);

  // Ok if every input with elements was read; else UNIMPLEMENTED names the first that was not.
  Status CheckAllRead() const;

 private:
  const Tensor* Find(std::string_view name);
  template <typename T>
  std::vector<T> EntryOf(const std::vector<T>& elements) const;

  const InferRequest& request_;
  const int64_t batch_;
  const int64_t entry_;
  std::set<std::string_view> read_;  // names of `request_`
};

}  // namespace tandem::serve::kserve
