// Reading a model's config.pbtxt. Templates whose variables were not filled in are read too: such a
// field gets its default and is reported by name. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace inference {
class ModelConfig;  // <model_config.pb.h>
}

namespace tandem::serve::kserve {

// A field whose value is a template's variable: `max_batch_size: ${triton_max_batch_size}`.
struct Unfilled {
  int line = 0;
  std::string key;            // "max_batch_size"; of a parameter its name
  std::string variable;       // "triton_max_batch_size"
  std::string default_value;  // that it got instead; empty: it is as if the field were not there
};

// Reads the text of the file `name` into `config`. A text with an unfilled variable counts as
// empty. INVALID_ARGUMENT with file, line and key for anything that is no config: an unknown field,
// a value of the wrong type, a tensor without name or type.
Status ReadConfigText(std::string_view text, std::string_view name, inference::ModelConfig& config,
                      std::vector<Unfilled>& unfilled);

// One line that names every unfilled field of a file and its default.
std::string DescribeUnfilled(std::string_view name, const std::vector<Unfilled>& unfilled);

}  // namespace tandem::serve::kserve
