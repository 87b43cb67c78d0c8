#include "apps/lmi/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "apps/cli/file_options.h"
#include "apps/lmi/key_rows.h"
#include "base/file.h"

namespace tandem::apps {
namespace {

constexpr int kImpliedSince = 27;  // max_num_tokens raises the defaults of other limits
constexpr int64_t kImpliedLength = 4096;
constexpr int64_t kImpliedBatch = 256;

bool IsServerKey(const LmiKey& key) {
  const auto keys = lmi_rows::ServerKeys();
  return &key >= keys.data() && &key < keys.data() + keys.size();
}

bool IsNone(std::string_view value) { return value.empty() || value == "None"; }

std::string WhereOf(const LmiGivenKeys& given, std::string_view key) {
  const auto found = given.find(key);
  return found == given.end() ? fmt::format("LMI's {}", key) : found->second.where;
}

bool Quantizes(const LmiSettings& settings) {
  const auto scheme = settings.options.find("quantize");
  return scheme != settings.options.end() && scheme->second != "none";
}

// The words of `LmiKey::name`, or close ones.
std::string Suggestion(std::string_view name) {
  std::vector<std::string_view> names;
  for (const LmiKeyGroup& group : LmiKeyGroups()) {
    for (const LmiKey& key : group.keys) names.push_back(key.name);
  }
  const std::string_view closest = ClosestName(name, names);
  if (FindLmiKey(fmt::format("option.{}", name)) != nullptr) {
    return fmt::format(" (did you mean option.{}?)", name);
  }
  return closest.empty() ? "" : fmt::format(" (did you mean {}?)", closest);
}

}  // namespace

Result<LmiConfig> LmiConfig::ForModel(LmiGivenKeys given, const LmiContext& context) {
  return Make(std::move(given), context, /*is_server=*/false);
}

Result<LmiConfig> LmiConfig::ForServer(LmiGivenKeys given, const LmiContext& context) {
  return Make(std::move(given), context, /*is_server=*/true);
}

Result<LmiConfig> LmiConfig::Make(LmiGivenKeys given, const LmiContext& context, bool is_server) {
  LmiConfig config;
  config.given_ = std::move(given);
  config.settings_.http.generation = context.generation < kImpliedSince
                                         ? serve::lmi::Generation::k026
                                     : context.generation < 34 ? serve::lmi::Generation::k027
                                                               : serve::lmi::Generation::k034;
  TANDEM_RETURN_IF_ERROR(config.TakeGiven(is_server));
  TANDEM_RETURN_IF_ERROR(config.TakeDefaults(context, is_server));
  if (!is_server) config.SettleLimits(context);
  config.NoteWithoutEffect(is_server);
  return config;
}

// What is given, into settings_.
Status LmiConfig::TakeGiven(bool is_server) {
  std::string unknown;
  for (auto& [name, given] : given_) {
    const LmiKey* key = FindLmiKey(name);
    if (key == nullptr) {
      unknown += fmt::format("{}{}{}", unknown.empty() ? "" : ", ", name, Suggestion(name));
      continue;
    }
    bool had_comment = false;
    std::string value = CleanLmiValue(*key, given.value, had_comment);
    if (had_comment) {
      notes_.push_back(fmt::format(
          "{}: '{}' is read as '{}'; a comment needs a line of its own, for Java's parser takes "
          "this one as part of the value",
          given.where, given.value, value));
    }
    given.value = value;
    if (IsServerKey(*key) != is_server || IsNone(value) || !key->take) continue;
    LmiSettings before = settings_;
    if (const Status status = key->take(value, settings_); !status.ok()) {
      return InvalidArgument(fmt::format("{}: {}", given.where, status.message()));
    }
    for (const auto& [option, text] : settings_.options) {
      const auto old = before.options.find(option);
      if (old != before.options.end() && old->second == text) continue;
      if (old != before.options.end()) {
        notes_.push_back(
            fmt::format("{}: no effect: {} sets the same", where_[option], given.where));
      }
      where_[option] = given.where;
    }
  }
  if (!unknown.empty()) {
    notes_.push_back(fmt::format("keys that are not known here have no effect: {}", unknown));
  }
  return {};
}

Status LmiConfig::TakeDefaults(const LmiContext& context, bool is_server) {
  for (const LmiKeyGroup& group : LmiKeyGroups()) {
    for (const LmiKey& key : group.keys) {
      const auto given = given_.find(key.name);
      if (IsServerKey(key) != is_server || !key.sets_default ||
          (key.only_on_gpu && !context.on_gpu) ||
          (given != given_.end() && !IsNone(given->second.value))) {
        continue;
      }
      const std::string value(key.DefaultOf(context.generation));
      // The key of a limit may be empty because of others: SettleLimits.
      const bool is_limit = key.name == "option.max_input_len" ||
                            key.name == "option.max_output_len" ||
                            key.name == "option.max_rolling_batch_size";
      if (value.empty() || is_limit) continue;
      const size_t before = settings_.options.size();
      if (!key.option.empty() && settings_.options.contains(key.option)) continue;
      const Status taken = key.take(value, settings_);
      TANDEM_CHECK(taken.ok(), "a key refuses its own default");
      if (settings_.options.size() > before) where_[key.option] = WhereOf(given_, key.name);
    }
  }
  return {};
}

void LmiConfig::SetFrom(const std::string& option, std::string value, std::string_view key) {
  where_[option] = WhereOf(given_, key);
  settings_.options[option] = std::move(value);
}

// Those that several keys make together.
void LmiConfig::SettleLimits(const LmiContext& context) {
  LmiLimits& limits = settings_.limits;
  const auto default_of = [&](std::string_view name) {
    return lmi_rows::ParseInteger(std::string(FindLmiKey(name)->DefaultOf(context.generation)), 1,
                                  1 << 24)
        .value();
  };
  if (limits.max_num_tokens && context.generation >= kImpliedSince) {
    const int64_t implied = std::min(kImpliedLength, *limits.max_num_tokens);
    limits.max_input_len = std::max(implied, limits.max_input_len.value_or(0));
    limits.max_output_len = std::max(implied, limits.max_output_len.value_or(0));
    limits.max_rolling_batch_size =
        std::max(kImpliedBatch, limits.max_rolling_batch_size.value_or(0));
  }
  if (!limits.max_rolling_batch_size) {
    limits.max_rolling_batch_size = default_of("option.max_rolling_batch_size");
  }
  if (!limits.max_seq_len) {
    if (!limits.max_input_len) limits.max_input_len = default_of("option.max_input_len");
    if (!limits.max_output_len) limits.max_output_len = default_of("option.max_output_len");
    limits.max_seq_len = *limits.max_input_len + *limits.max_output_len;
    SetFrom(lmi_rows::EngineOption<&EngineOptions::max_seq_len>(),
            std::to_string(*limits.max_seq_len), "option.max_output_len");
  } else {
    SetFrom(lmi_rows::EngineOption<&EngineOptions::max_seq_len>(),
            std::to_string(*limits.max_seq_len), "option.max_seq_len");
  }
  if (limits.max_input_len) {
    SetFrom(lmi_rows::EngineOption<&EngineOptions::max_input_len>(),
            std::to_string(*limits.max_input_len), "option.max_input_len");
  }
  std::pair<int64_t, std::string_view> batch = {*limits.max_rolling_batch_size,
                                                "option.max_rolling_batch_size"};
  if (limits.max_num_sequences.value_or(batch.first) < batch.first) {
    batch = {*limits.max_num_sequences, "option.max_num_sequences"};
  }
  if (limits.max_batch_size.value_or(batch.first) < batch.first) {
    batch = {*limits.max_batch_size, "option.max_batch_size"};
  }
  SetFrom(lmi_rows::EngineOption<&EngineOptions::max_batch_size>(), std::to_string(batch.first),
          batch.second);
  if (limits.max_num_tokens || limits.max_prefill_tokens) {
    SetFrom(lmi_rows::EngineOption<&EngineOptions::max_num_tokens>(),
            std::to_string(limits.max_num_tokens.value_or(limits.max_prefill_tokens.value_or(0))),
            limits.max_num_tokens ? "option.max_num_tokens"
                                  : "option.max_rolling_batch_prefill_tokens");
  }
  SetFrom(lmi_rows::EngineOption<&EngineOptions::max_queue_size>(),
          std::to_string(settings_.http.job_queue_size), "job_queue_size");
  if (Quantizes(settings_) && !settings_.options.contains("calib_size")) {
    SetFrom("calib_size", std::to_string(default_of("option.calib_size")), "option.calib_size");
  }
  // Those that are opened later get as much.
  const std::string fraction = lmi_rows::EngineOption<&EngineOptions::kv_cache_free_fraction>();
  const int remaining = std::max(1, context.num_models - context.model);
  const bool is_given = given_.contains("option.kv_cache_free_gpu_mem_fraction") ||
                        given_.contains("option.free_gpu_memory_fraction");
  if (remaining > 1 && !is_given && context.on_gpu) {
    const Result<double> whole = lmi_rows::ParseNumber(settings_.options[fraction], 0, 1);
    settings_.options[fraction] = fmt::format("{:.3f}", whole.value() / remaining);
  }
}

void LmiConfig::NoteWithoutEffect(bool is_server) {
  for (const auto& [name, given] : given_) {
    const LmiKey* key = FindLmiKey(name);
    if (key == nullptr || IsNone(given.value)) continue;
    if (IsServerKey(*key) != is_server) {
      if (is_server) continue;  // the models tell
      notes_.push_back(fmt::format(
          "{}: no effect here: it is a key of the server, for config.properties or SERVING_{}",
          given.where, name));
      continue;
    }
    if (key->effect != LmiEffect::kNone) continue;
    const auto says = [&](const LmiDefault& row) { return row.value == given.value; };
    if (std::ranges::any_of(key->defaults, says)) continue;
    if (lmi_rows::IsAmong(given.value, key->neutral)) continue;
    notes_.push_back(fmt::format("{} {}: no effect: {}", given.where, given.value, key->note));
  }
  if (Quantizes(settings_) || is_server) return;
  for (const LmiKey& key : lmi_rows::QuantizationKeys()) {
    if (key.name == "option.quantize") continue;
    settings_.options.erase(key.option);
    const auto given = given_.find(key.name);
    if (given == given_.end()) continue;
    notes_.push_back(fmt::format("{}: no effect without option.quantize", given->second.where));
  }
}

Status LmiConfig::SetOptions(OptionValues& values) const {
  for (const auto& [name, text] : settings_.options) {
    TANDEM_RETURN_IF_ERROR(SetUnlessSet(values, name, text, where_.find(name)->second));
  }
  return {};
}

void LmiConfig::Drop(std::string_view option, std::string_view why) {
  const auto found = settings_.options.find(option);
  if (found == settings_.options.end()) return;
  notes_.push_back(fmt::format("{}: no effect: {}", where_.find(option)->second, why));
  settings_.options.erase(found);
}

Result<std::string> LmiConfig::Show(const OptionValues& values) const {
  OptionValues settled = values;
  TANDEM_RETURN_IF_ERROR(SetOptions(settled));
  std::string out;
  for (const auto& [name, given] : given_) {
    const LmiKey* key = FindLmiKey(name);
    out += fmt::format("# {}: {}\n{}={}\n", given.where,
                       key == nullptr                    ? "not known here, no effect"
                       : key->effect == LmiEffect::kNone ? "no effect: " + key->note
                       : key->option.empty()             ? key->note
                                                         : "--" + key->option,
                       name, given.value);
  }
  for (const auto& [option, value] : settings_.options) {
    const std::string& counts = settled.Given(*settled.Find(option));
    out += fmt::format("# => --{} {}{}\n", option, counts,
                       counts == value ? "" : " (of the command line or a TANDEM_ variable)");
  }
  return out;
}

}  // namespace tandem::apps
