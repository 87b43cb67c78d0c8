// The keys of the configuration of SageMaker's LMI containers as one table: for each its default,
// and what it does here or why nothing. docs/coming-from/lmi.md shows the table. Constants and pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/lmi/settings.h"
#include "base/status.h"

namespace tandem::apps {

enum class LmiEffect : uint8_t {
  kOption,   // sets an option of the option table
  kSetting,  // sets a member of LmiSettings
  kLimited,  // values that ask for what there is not are refused
  kNone,     // has no effect here, and the table says why
};

// What a value is. Of all but text a comment may follow it on the line.
enum class LmiValue : uint8_t { kText, kInteger, kNumber, kBool, kWord };

// A default, from the release 0.`since` on.
struct LmiDefault {
  int since = 26;
  std::string_view value = {};
};

struct LmiKey {
  std::string_view name;  // "option.max_input_len", "job_queue_size"
  LmiValue type = LmiValue::kText;
  std::vector<LmiDefault> defaults;
  LmiEffect effect = LmiEffect::kNone;
  std::string option;  // of the option table that it acts on; may be empty
  std::string note;    // what it does, or why nothing; a sentence without its end
  // INVALID_ARGUMENT with a sentence that follows the key's name: "must be true or false, not 'x'".
  // The range of an option is checked by whoever sets it. Empty without effect.
  std::function<Status(const std::string& value, LmiSettings& settings)> take;
  bool sets_default = false;  // the default is set where the key is not given
  bool only_on_gpu = false;   // the same, with a GPU
  // Of a key without effect: "1|max", values of which nobody expects one, besides the defaults.
  std::string_view neutral = {};

  // The default of release 0.`generation`; empty: none.
  std::string_view DefaultOf(int generation) const;
};

// Part of the page's table.
struct LmiKeyGroup {
  std::string_view title;
  std::span<const LmiKey> keys;
};

std::span<const LmiKeyGroup> LmiKeyGroups();
// Null when there is none.
const LmiKey* FindLmiKey(std::string_view name);

// The value as it is meant: without blanks at its ends and, unless it is free text, without a
// comment after it, which `had_comment` tells. Java keeps both as part of the value.
std::string CleanLmiValue(const LmiKey& key, std::string_view value, bool& had_comment);

// The tables of the page, in Markdown.
std::string LmiKeysMarkdown();

}  // namespace tandem::apps
