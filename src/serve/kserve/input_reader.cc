#include "serve/kserve/input_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tandem::serve::kserve {
namespace {

// No elements, or only empty strings.
bool AsksNothing(const Tensor& tensor) {
  const std::vector<std::string_view> strings = Strings(tensor);
  return tensor.data.empty() ||
         (!strings.empty() && std::all_of(strings.begin(), strings.end(),
                                          [](std::string_view text) { return text.empty(); }));
}

}  // namespace

const Tensor* InputReader::Find(std::string_view name) {
  const Tensor* tensor = request_.Input(name);
  if (tensor != nullptr) read_.insert(tensor->name);
  return tensor;
}

// The first dimension of a tensor is the batch's, and elements lie rows first.
template <typename T>
std::vector<T> InputReader::EntryOf(const std::vector<T>& elements) const {
  const auto count = static_cast<std::ptrdiff_t>(elements.size()) / batch_;
  const auto begin = elements.begin() + entry_ * count;
  return {begin, begin + count};
}

std::vector<int64_t> InputReader::Ints(std::string_view name) {
  const Tensor* tensor = Find(name);
  return tensor == nullptr ? std::vector<int64_t>() : EntryOf(Integers(*tensor));
}

std::vector<float> InputReader::Floats(std::string_view name) {
  const Tensor* tensor = Find(name);
  return tensor == nullptr ? std::vector<float>() : EntryOf(kserve::Floats(*tensor));
}

std::vector<std::string> InputReader::Strings(std::string_view name) {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) return {};
  const std::vector<std::string_view> views = EntryOf(kserve::Strings(*tensor));
  return {views.begin(), views.end()};
}

std::vector<std::string> InputReader::Words(std::string_view name) {
  std::vector<std::string> words = Strings(name);
  std::erase(words, "");
  return words;
}

std::optional<int64_t> InputReader::Int(std::string_view name) {
  const std::vector<int64_t> values = Ints(name);
  return values.empty() ? std::nullopt : std::optional(values.front());
}

std::optional<uint64_t> InputReader::Unsigned(std::string_view name) {
  const std::optional<int64_t> value = Int(name);
  return value ? std::optional(static_cast<uint64_t>(*value)) : std::nullopt;
}

std::optional<double> InputReader::Float(std::string_view name) {
  const std::vector<float> values = Floats(name);
  return values.empty() ? std::nullopt : std::optional<double>(values.front());
}

std::optional<std::string> InputReader::String(std::string_view name) {
  std::vector<std::string> values = Strings(name);
  return values.empty() ? std::nullopt : std::optional(std::move(values.front()));
}

bool InputReader::Bool(std::string_view name, bool otherwise) {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) return otherwise;
  const std::vector<bool> values = EntryOf(Bools(*tensor));
  return values.empty() ? otherwise : values.front();
}

bool InputReader::Has(std::string_view name) {
  const Tensor* tensor = Find(name);
  return tensor != nullptr && !tensor->data.empty();
}

Status InputReader::CheckAllRead() const {
  for (const Tensor& tensor : request_.inputs) {
    if (read_.contains(tensor.name) || AsksNothing(tensor)) continue;
    return Unimplemented(fmt::format("{}: is not supported by this server", tensor.name))
        .WithField(tensor.name);
  }
  return {};
}

}  // namespace tandem::serve::kserve
