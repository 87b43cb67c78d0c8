// JsonFields: typed look-ups in a JSON object written by someone else (config.json and similar
// files). The first fault is kept, with the key's full path and the value found, so a reader takes
// field after field and checks status() once. A cheap handle to shared state; used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

class JsonFields {
 public:
  // INVALID_ARGUMENT unless `text` is one JSON object.
  static Result<JsonFields> Parse(std::string_view text);

  // True when the key is present and not null. Every look-up treats null like an absent key.
  bool Has(std::string_view key) const;
  std::vector<std::string> Keys() const;

  // Without a fallback the key is required. After a fault these return the fallback or zero.
  int64_t Int(std::string_view key) const;
  int64_t Int(std::string_view key, int64_t fallback) const;
  double Number(std::string_view key) const;
  double Number(std::string_view key, double fallback) const;
  bool Bool(std::string_view key, bool fallback) const;
  std::string Text(std::string_view key) const;
  std::string Text(std::string_view key, std::string_view fallback) const;
  // A whole number, a list of them, or nothing.
  std::vector<int64_t> Ints(std::string_view key) const;
  // A list of numbers, or nothing.
  std::vector<double> Numbers(std::string_view key) const;
  // A list of strings, or nothing.
  std::vector<std::string> Texts(std::string_view key) const;
  // The object under the key; its faults count as this one's.
  std::optional<JsonFields> Object(std::string_view key) const;
  // A list of objects, or nothing; their faults count as this one's.
  std::vector<JsonFields> Objects(std::string_view key) const;
  // The value for a message, cut short: `"yarn"`, `4096`, `a list`.
  std::string Shown(std::string_view key) const;

  // Records a fault of the key's value: "rope_scaling.factor: <what>".
  void Fail(std::string_view key, std::string_view what) const;
  // The first fault.
  const Status& status() const;

 private:
  struct State;
  JsonFields(std::shared_ptr<State> state, const void* node, std::string path)
      : state_(std::move(state)), node_(node), path_(std::move(path)) {}
  std::shared_ptr<State> state_;
  const void* node_;  // the object in state_'s document
  std::string path_;  // "rope_scaling." or ""
};

}  // namespace tandem
