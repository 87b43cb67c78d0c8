// llgtrt's command-line options without a counterpart here, and the settings that they and its
// files give a server. Functions; main thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/llgtrt/config.h"
#include "apps/models/tokenizers.h"
#include "base/bound_options.h"

namespace tandem::apps {

struct LlgtrtOptions {
  bool as_llgtrt = false;  // its defaults, files or none
  std::vector<std::string> configs;
  std::filesystem::path runtime;
  std::filesystem::path chat_template;
  bool print_config = false;
  bool print_complete_config = false;
  bool print_chat_template = false;
  bool debug = false;
  bool debug_llg = false;
  bool quiet = false;
};

std::vector<OptionSpec> LlgtrtOptionRows();

// What names the models of a server.
enum class ModelsFrom : uint8_t { kOptions, kRepository, kLmi };

// What llgtrt's options and files add to a server's options.
struct LlgtrtServing {
  TextSettings text;
  std::vector<std::filesystem::path> files;  // that were read
  bool any_model_name = false;               // clients may write any name of a model
  std::optional<std::string> printed;        // instead of serving, this is shown
};

// Reads the options and files, sets the log's level, and gives options in `values` that are not
// set their values. The files are those that the options name, else those in the target's folder.
// INVALID_ARGUMENT for options that would have no effect. Unless the options name the models, no
// folder is looked into.
Result<LlgtrtServing> TakeLlgtrt(OptionValues& values, ModelsFrom models_from);

}  // namespace tandem::apps
