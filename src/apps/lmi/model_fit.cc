#include "apps/lmi/model_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/models/config_rows.h"
#include "apps/models/session.h"
#include "base/log.h"
#include "engine_folder/source.h"
#include "runtime/option_rows.h"

namespace tandem::apps {

namespace fs = std::filesystem;

Status BoundLengths(const OptionValues& base, const LmiConfig& config, OptionValues& values) {
  const OptionSpec& whole = EngineOptionRows().RowOf<&EngineOptions::max_seq_len>();
  const OptionSpec& input = EngineOptionRows().RowOf<&EngineOptions::max_input_len>();
  if (base.IsSet(whole)) return {};
  const auto model = OpenModel(ModelOptionRows().Read(values).target, std::nullopt,
                               ConfigOptionRows().Read(values));
  if (!model.ok()) return {};  // the session tells
  const int64_t positions = model->spec().max_positions;
  if (values.Int(whole) <= positions) return {};
  for (const std::string_view key :
       {"option.max_seq_len", "option.max_input_len", "option.max_output_len"}) {
    const auto given = config.given().find(key);
    if (given == config.given().end()) continue;
    LogWarning(
        "{}: sequences of {} tokens are asked for; the model has {} positions, which are "
        "served",
        given->second.where, values.Int(whole), positions);
    break;
  }
  TANDEM_RETURN_IF_ERROR(values.Set(whole.name, {std::to_string(positions)}, whole.name));
  if (base.IsSet(input) || values.Int(input) < positions || positions < 2) return {};
  return values.Set(input.name, {std::to_string(positions - 1)}, input.name);
}

Status SettleVersions(const fs::path& folder, LmiConfig& config) {
  constexpr std::pair<std::string_view, std::string ConfigOptions::*> kVersions[] = {
      {"baichuan_model_version", &ConfigOptions::baichuan_model_version},
      {"chatglm_model_version", &ConfigOptions::chatglm_model_version},
      {"gpt_model_version", &ConfigOptions::gpt_model_version}};
  for (const auto& [name, member] : kVersions) {
    const auto given = config.settings().options.find(name);
    if (given == config.settings().options.end()) continue;
    ConfigOptions options;
    options.*member = given->second;
    const Status told = OpenModel(folder, std::nullopt, options).status();
    if (told.ok() || !OpenModel(folder, std::nullopt, {}).ok()) continue;
    const std::string key = fmt::format("option.{}", name);
    const std::vector<LmiDefault>& defaults = FindLmiKey(key)->defaults;
    if (std::ranges::find(defaults, std::string_view(given->second), &LmiDefault::value) ==
        defaults.end()) {
      return InvalidArgument(
          fmt::format("{}: {}", config.given().find(key)->second.where, told.message()));
    }
    config.Drop(name, told.message());
  }
  return {};
}

}  // namespace tandem::apps
