#include "apps/lmi/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/lmi/key_rows.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kBlanks = " \t\f\r\n";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// "32; from 0.27 on 256"
std::string ShowDefaults(const LmiKey& key) {
  std::string shown;
  for (const LmiDefault& row : key.defaults) {
    if (row.value.empty() && shown.empty()) continue;
    if (!shown.empty() || row.since > 26) {
      shown += fmt::format("{}from 0.{} on ", shown.empty() ? "" : "; ", row.since);
    }
    shown += row.value.empty() ? "none" : fmt::format("`{}`", row.value);
  }
  return shown.empty() ? "–" : shown;
}

std::string ShowEffect(const LmiKey& key) {
  std::string shown;
  if (key.effect == LmiEffect::kNone) shown = "no effect: ";
  if (!key.option.empty()) {
    shown = fmt::format("`--{}`{}", key.option, key.note.empty() ? "" : ": ");
  }
  shown += key.note;
  for (size_t at = 0; (at = shown.find('|', at)) != std::string::npos; at += 2) {
    shown.insert(at, 1, '\\');  // it would end the cell
  }
  return shown;
}

}  // namespace

std::string_view LmiKey::DefaultOf(int generation) const {
  std::string_view value;
  for (const LmiDefault& row : defaults) {
    if (row.since <= generation) value = row.value;
  }
  return value;
}

std::span<const LmiKeyGroup> LmiKeyGroups() {
  static const std::array<LmiKeyGroup, 5> groups = {{
      {"Of every container", lmi_rows::ModelKeys()},
      {"Of TensorRT-LLM", lmi_rows::TrtLlmKeys()},
      {"Quantization", lmi_rows::QuantizationKeys()},
      {"Of TensorRT-LLM's Python API (0.33 and later)", lmi_rows::LlmApiKeys()},
      {"Of the server (`config.properties`, `SERVING_…`)", lmi_rows::ServerKeys()},
  }};
  return groups;
}

const LmiKey* FindLmiKey(std::string_view name) {
  for (const LmiKeyGroup& group : LmiKeyGroups()) {
    const auto found = std::ranges::find(group.keys, name, &LmiKey::name);
    if (found != group.keys.end()) return &*found;
  }
  return nullptr;
}

std::string CleanLmiValue(const LmiKey& key, std::string_view value, bool& had_comment) {
  had_comment = false;
  if (key.type == LmiValue::kText) return std::string(Trimmed(value));
  for (size_t at = value.find('#'); at != std::string_view::npos; at = value.find('#', at + 1)) {
    if (at > 0 && kBlanks.find(value[at - 1]) == std::string_view::npos) continue;
    had_comment = true;
    value = value.substr(0, at);
    break;
  }
  return std::string(Trimmed(value));
}

std::string LmiKeysMarkdown() {
  std::string page;
  for (const LmiKeyGroup& group : LmiKeyGroups()) {
    page += fmt::format("{}### {}\n\n| key | LMI's default | here |\n|---|---|---|\n",
                        page.empty() ? "" : "\n", group.title);
    for (const LmiKey& key : group.keys) {
      page += fmt::format("| `{}` | {} | {} |\n", key.name, ShowDefaults(key), ShowEffect(key));
    }
  }
  return page;
}

}  // namespace tandem::apps
