// Options of llgtrt that are spelled in another way here or have no other place, and what they and
// llgtrt's files say about a model that is served. Functions; main thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/command.h"
#include "apps/llgtrt_config.h"
#include "apps/tokenizers.h"
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

// What llgtrt's options and files add to a server's options.
struct LlgtrtServing {
  TextSettings text;
  std::vector<std::filesystem::path> files;  // that were read
  bool any_model_name = false;               // clients may write any name of a model
  std::optional<std::string> printed;        // instead of serving, this is shown
};

// Reads the options and files, sets the log's level, and gives options in `values` that are not
// set their values. The files are those that the options name, else those in the target's folder.
// INVALID_ARGUMENT for options that would have no effect. `models_elsewhere`: MODEL is not what is
// served, so its folder is not looked into.
Result<LlgtrtServing> TakeLlgtrt(OptionValues& values, bool models_elsewhere = false);

}  // namespace tandem::apps
