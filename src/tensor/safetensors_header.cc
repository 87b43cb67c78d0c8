#include "tensor/safetensors_header.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "tensor/tensor_file.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
// Room for every real shape, but not enough to exhaust memory.
constexpr size_t kMaxListItems = 64;

// Receives the parser's events. Every handler returns false, with error_ set, at the first fault.
class HeaderReader {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("a boolean"); }
  bool binary(Json::binary_t&) { return Unexpected("binary data"); }
  bool number_float(double, const std::string& text) { return Unexpected("the number " + text); }
  bool number_integer(int64_t value) { return Unexpected("the number " + std::to_string(value)); }

  bool number_unsigned(uint64_t value) {
    if (!in_list_) return Unexpected("a number");
    if (list_->size() >= kMaxListItems) return Fail("its list " + key_ + " is too long");
    list_->push_back(value);
    return true;
  }

  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || key_ != "dtype" || in_list_) return Unexpected("a string");
    const std::optional<DType> dtype = ParseSafetensorsDType(value);
    if (!dtype) return Fail("its dtype " + value.substr(0, 32) + " is not supported");
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) {
    if (in_list_ || depth_ == 2) return Unexpected("an object");
    if (++depth_ == 2) {
      in_metadata_ = key_ == kMetadata;
      keys_seen_.clear();
      entry_ = {};
      entry_.name = key_;
      shape_.clear();
      offsets_.clear();
    }
    return true;
  }

  bool end_object() {
    if (depth_-- == 2 && !in_metadata_) return FinishEntry();
    return true;
  }

  bool start_array(size_t) {
    if (depth_ != 2 || in_metadata_ || in_list_) return Unexpected("a list");
    if (key_ != "shape" && key_ != "data_offsets") return Unexpected("a list");
    list_ = key_ == "shape" ? &shape_ : &offsets_;
    in_list_ = true;
    return true;
  }

  bool end_array() {
    in_list_ = false;
    return true;
  }

  bool key(std::string& name) {
    key_ = name;
    if (depth_ == 1) {
      if (!names_.insert(name).second) return FailAs(name, "it is listed twice");
      return true;
    }
    if (!keys_seen_.insert(name).second) return Fail("its key " + QuotedKey() + " occurs twice");
    if (in_metadata_ || name == "dtype" || name == "shape" || name == "data_offsets") return true;
    return Fail("its key " + QuotedKey() + " is unknown");
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    error_ = "the header is not valid JSON at byte " + std::to_string(position);
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  std::string QuotedKey() const { return fmt::format("\"{}\"", key_.substr(0, 32)); }

  bool FailAs(std::string_view name, const std::string& what) {
    error_ = QuotedTensorName(name) + ": " + what;
    return false;
  }
  bool Fail(const std::string& what) { return FailAs(entry_.name, what); }
  bool Unexpected(const std::string& what) {
    if (depth_ == 0) {
      error_ = "the header is " + what + ", not an object";
      return false;
    }
    if (depth_ == 1) return FailAs(key_, "it is " + what + ", not an object");
    return Fail("its key " + QuotedKey() + " holds " + what);
  }

  bool FinishEntry() {
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (!keys_seen_.contains(needed)) return Fail(std::string("it has no ") + needed);
    }
    if (shape_.size() > Shape::kMaxRank) {
      return Fail("it has " + std::to_string(shape_.size()) + " dimensions, more than the " +
                  std::to_string(Shape::kMaxRank) + " supported");
    }
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return Fail("its data_offsets are not [begin, end]");
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    return FinishShape();
  }

  bool FinishShape() {
    std::vector<int64_t> dims;
    int64_t bytes = static_cast<int64_t>(SizeOf(entry_.dtype));
    for (const uint64_t dim : shape_) {
      if (dim > INT64_MAX || __builtin_mul_overflow(bytes, static_cast<int64_t>(dim), &bytes)) {
        return Fail("its shape overflows");
      }
      dims.push_back(static_cast<int64_t>(dim));
    }
    entry_.shape = Shape::Of(dims);
    const uint64_t stored = entry_.end - entry_.begin;
    if (static_cast<uint64_t>(bytes) != stored) {
      return Fail("its shape " + entry_.shape.ToString() + " of " +
                  std::string(SafetensorsName(entry_.dtype)) + " takes " + std::to_string(bytes) +
                  " bytes, its data_offsets hold " + std::to_string(stored));
    }
    header_.entries.push_back(std::move(entry_));
    entry_ = {};
    return true;
  }

  SafetensorsHeader& header_;
  int depth_ = 0;  // open objects
  bool in_list_ = false;
  bool in_metadata_ = false;
  std::string key_;  // the last one read
  std::set<std::string> names_;
  std::set<std::string> keys_seen_;  // of the object at depth 2
  SafetensorsEntry entry_;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t>* list_ = nullptr;
  std::string error_;
};

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json) {
  SafetensorsHeader header;
  HeaderReader reader(header);
  if (json.empty() || json.front() != '{') {
    return DataLoss("the header does not begin with {");
  }
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return DataLoss(reader.error());
  return header;
}

}  // namespace tandem
