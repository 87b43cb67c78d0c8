#include "apps/llgtrt/options.h"

#include <fmt/format.h>

#include "apps/cli/file_options.h"
#include "apps/models/session.h"
#include "base/file.h"
#include "base/log_level.h"
#include "text/chat_template.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "As llgtrt has them";
constexpr std::string_view kPort = "3000";

template <auto kField>
BoundOption<LlgtrtOptions> Sets(OptionSpec spec) {
  spec.group = kGroup;
  return BindOption<LlgtrtOptions, kField>(spec);
}

const BoundOptions<LlgtrtOptions>& Rows() {
  using O = LlgtrtOptions;
  static const BoundOptions<O> rows({
      Sets<&O::as_llgtrt>({.name = "as_llgtrt",
                           .meaning = "Start as launch-llgtrt.sh does: on port 3000, with the "
                                      "defaults of llgtrt's configuration, and for requests that "
                                      "name any model"}),
      Sets<&O::configs>({.name = "config",
                         .meaning = "Configuration files (JSON5), merged in order; unless given: "
                                    "llgtrt.json5 in the folder of MODEL",
                         .alias = "-C"}),
      Sets<&O::runtime>({.name = "runtime_config",
                         .meaning = "Configuration of the engine (JSON) over those; unless given: "
                                    "runtime.json in the folder of MODEL"}),
      Sets<&O::chat_template>({.name = "chat_template",
                               .meaning = "File of the chat template, instead of the model's and "
                                          "the configuration's"}),
      Sets<&O::print_config>(
          {.name = "print_config",
           .meaning = "Show the merged configuration, llgtrt's or an LMI container's, and exit"}),
      Sets<&O::print_complete_config>({.name = "print_complete_config",
                                       .meaning = "Show it with what the tokenizer's files say, "
                                                  "and exit"}),
      Sets<&O::print_chat_template>(
          {.name = "print_chat_template", .meaning = "Show the chat template and exit"}),
      Sets<&O::debug>({.name = "debug", .meaning = "As --log_level debug", .alias = "-d"}),
      Sets<&O::debug_llg>({.name = "debug_llg",
                           .meaning = "As --log_level debug and --grammar_log_level 2",
                           .alias = "-D"}),
      Sets<&O::quiet>({.name = "quiet", .meaning = "As --log_level warning", .alias = "-q"}),
  });
  return rows;
}

constexpr OptionSpec kNotHere[] = {
    {.name = "lora_root",
     .type = OptionType::kOptionalText,
     .meaning = "Refused: adapters are not supported",
     .group = kGroup},
    {.name = "test_py",
     .type = OptionType::kOptionalText,
     .meaning = "Refused: no Python is run",
     .group = kGroup},
};

Status CheckRefused(const OptionValues& values) {
  for (const OptionSpec& row : kNotHere) {
    if (!values.IsSet(row)) continue;
    return InvalidArgument(fmt::format("--{}: is not supported{}", row.name,
                                       row.name == "test_py"
                                           ? "; no Python is run, and text alone is served"
                                           : " yet; merge the adapter into the model"));
  }
  return {};
}

// What is said of MODEL has no effect on a repository's models.
Status CheckWithRepository(const OptionValues& values) {
  using O = LlgtrtOptions;
  const BoundOptions<O>& rows = Rows();
  for (const OptionSpec* row :
       {&rows.RowOf<&O::as_llgtrt>(), &rows.RowOf<&O::configs>(), &rows.RowOf<&O::runtime>(),
        &rows.RowOf<&O::chat_template>(), &rows.RowOf<&O::print_config>(),
        &rows.RowOf<&O::print_complete_config>(), &rows.RowOf<&O::print_chat_template>()}) {
    if (!values.IsSet(*row)) continue;
    return InvalidArgument(fmt::format(
        "--{}: is for MODEL; with --model_repo each model's config.pbtxt says it", row->name));
  }
  return {};
}

// Of the target; empty for a dummy.
Result<std::filesystem::path> TargetFolder(const ModelOptions& models) {
  if (!models.target.empty() || !models.dummy.empty()) return models.target;
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path pair, EmbeddedPairFolder());
  return pair / "target";
}

// The file that is named, else `name` in the folder if it is there.
std::filesystem::path NamedOr(const std::filesystem::path& named,
                              const std::filesystem::path& folder, std::string_view name) {
  if (!named.empty()) return named;
  return !folder.empty() && NameExists(folder / name) ? folder / name : std::filesystem::path();
}

LlgtrtFiles FindFiles(const LlgtrtOptions& options, const std::filesystem::path& folder) {
  LlgtrtFiles files;
  for (const std::string& path : options.configs) files.configs.emplace_back(path);
  if (files.configs.empty()) {
    const std::filesystem::path own = NamedOr({}, folder, "llgtrt.json5");
    if (!own.empty()) files.configs.push_back(own);
  }
  files.runtime = NamedOr(options.runtime, folder, "runtime.json");
  return files;
}

// The template's file goes over the configuration's value.
Result<std::string> TokenizerConfig(serve::Json::Object members,
                                    const std::filesystem::path& template_file) {
  if (!template_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::string source, ReadTextFile(template_file));
    std::erase_if(members, [](const auto& member) { return member.name == "chat_template"; });
    members.push_back({"chat_template", serve::Json(std::move(source))});
  }
  return members.empty() ? std::string() : serve::Json(std::move(members)).Dump();
}

Result<std::string> TemplateSource(const std::filesystem::path& folder,
                                   const std::string& overrides) {
  TANDEM_ASSIGN_OR_RETURN(const auto chat, ChatTemplate::FromModelDir(folder, nullptr, overrides));
  return std::string(chat->Source(/*has_tools=*/false));
}

// What the folder's files say of the tokenizer's keys that the configuration does not hold, and the
// template that is used, as JSON.
Result<std::map<std::string, std::string>> FolderValues(const LlgtrtConfig& own,
                                                        const std::filesystem::path& folder,
                                                        const std::string& overrides) {
  std::map<std::string, std::string> values;
  const Result<std::string> source = TemplateSource(folder, overrides);
  if (source.ok()) values["tokenizer.chat_template"] = serve::Json(*source).Dump();
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!NameExists(path)) return values;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const Result<serve::Json> config = serve::ParseJson(text, {.allow_duplicates = true});
  if (!config.ok()) return config.status().Annotate(path.string());
  for (const LlgtrtKey& key : LlgtrtKeys()) {
    const serve::Json* value = config->Find(key.name());
    if (key.section() == "tokenizer" && value != nullptr && own.ValueOf(key).empty()) {
      values.emplace(key.path, value->Dump());
    }
  }
  return values;
}

Status SetLevel(const LlgtrtOptions& options, OptionValues& values) {
  if (options.quiet) SetLogLevel(LogLevel::kWarning);
  if (options.debug || options.debug_llg) SetLogLevel(LogLevel::kDebug);
  if (!options.debug_llg) return {};
  return SetUnlessSet(values, "grammar_log_level", "2", "--debug_llg");
}

}  // namespace

std::vector<OptionSpec> LlgtrtOptionRows() { return Join({Rows().specs(), kNotHere}); }

Result<LlgtrtServing> TakeLlgtrt(OptionValues& values, ModelsFrom models_from) {
  const LlgtrtOptions options = Rows().Read(values);
  TANDEM_RETURN_IF_ERROR(SetLevel(options, values));
  TANDEM_RETURN_IF_ERROR(CheckRefused(values));
  const bool prints =
      options.print_config || options.print_complete_config || options.print_chat_template;
  LlgtrtServing serving;
  if (models_from == ModelsFrom::kLmi) return serving;
  if (models_from == ModelsFrom::kRepository) {
    TANDEM_RETURN_IF_ERROR(CheckWithRepository(values));
    return serving;
  }
  const ModelOptions models = ModelOptionRows().Read(values);
  const bool has_model = !models.target.empty() || !models.dummy.empty();
  if (options.as_llgtrt && !prints && !has_model) {
    return FieldError("--as_llgtrt",
                      "no model is named; give TARGET, and DRAFT if there is one, before the "
                      "options (is a variable of the shell that names it empty?)");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path folder, TargetFolder(models));
  const LlgtrtFiles files = FindFiles(options, folder);
  const bool is_llgtrt = options.as_llgtrt || !files.configs.empty() || !files.runtime.empty();
  serving.any_model_name = options.as_llgtrt;
  if (options.as_llgtrt) {
    TANDEM_RETURN_IF_ERROR(SetUnlessSet(values, "port", std::string(kPort), "--as_llgtrt"));
  }
  LlgtrtConfig config;
  if (is_llgtrt || prints) {
    TANDEM_ASSIGN_OR_RETURN(config, LlgtrtConfig::Read(files));
    TANDEM_RETURN_IF_ERROR(config.SetOptions(values));
    serving.files = files.configs;
    if (!files.runtime.empty()) serving.files.push_back(files.runtime);
  }
  // The template beside an engine counts, wherever its tokenizer is.
  const std::filesystem::path template_file = NamedOr(
      options.chat_template, is_llgtrt ? folder : std::filesystem::path(), "chat_template.j2");
  TANDEM_ASSIGN_OR_RETURN(serving.text.tokenizer_config,
                          TokenizerConfig(config.settings().tokenizer_config, template_file));
  serving.text.n_vocab = config.settings().n_vocab;
  if (!prints) return serving;
  const std::filesystem::path tokenizer =
      models.tokenizer_dir.empty() ? folder : models.tokenizer_dir;
  if (options.print_chat_template) {
    TANDEM_ASSIGN_OR_RETURN(serving.printed,
                            TemplateSource(tokenizer, serving.text.tokenizer_config));
  } else if (options.print_complete_config) {
    TANDEM_ASSIGN_OR_RETURN(const auto more,
                            FolderValues(config, tokenizer, serving.text.tokenizer_config));
    serving.printed = ShowLlgtrtConfig(config, more);
  } else {
    serving.printed = ShowLlgtrtConfig(config);
  }
  return serving;
}

}  // namespace tandem::apps
