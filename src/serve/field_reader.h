// FieldReader: typed members of one JSON object. The first member of a wrong type is kept as the
// error; a missing or null member reads as absent. It remembers the names that were asked for, so
// that the others can be told. A plain local value; the object outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/json.h"

namespace tandem::serve {

class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  const Json* Get(std::string_view name) const;  // null when missing or null
  std::optional<double> Number(std::string_view name);
  std::optional<int64_t> Integer(std::string_view name);
  // Any 64-bit integer; a negative one keeps its bit pattern.
  std::optional<uint64_t> Bits64(std::string_view name);
  std::optional<bool> Boolean(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  // A string, unless it is empty, or an array of strings.
  std::vector<std::string> Strings(std::string_view name);
  // By the type of the variable.
  void Read(std::string_view name, std::optional<double>& out) { out = Number(name); }
  void Read(std::string_view name, std::optional<int64_t>& out) { out = Integer(name); }

  void Fail(std::string_view name, std::string_view sentence);  // the first one counts
  const Status& status() const { return status_; }

  // Members that nobody asked for, null ones left out: the first `most` of them.
  std::vector<std::string> Unread(size_t most) const;

 private:
  void WrongType(std::string_view name, std::string_view wanted, const Json& value);

  const Json& object_;
  mutable std::vector<std::string> asked_;
  Status status_;
};

}  // namespace tandem::serve
