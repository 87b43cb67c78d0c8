// Fuzz target: any text as a config.pbtxt. What can be read is also read for its parameters.
#include <model_config.pb.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "serve/kserve/config_file.h"
#include "serve/kserve/model_parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::serve::kserve;
  inference::ModelConfig config;
  std::vector<Unfilled> unfilled;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const tandem::Status read = ReadConfigText(text, "config.pbtxt", config, unfilled);
  DescribeUnfilled("config.pbtxt", unfilled);
  TANDEM_CHECK(read.ok() || !read.message().empty(), "an error without a message");
  if (!read.ok()) return 0;
  const auto parameters = ReadModelParameters(config, "model");
  TANDEM_CHECK(parameters.ok() || !parameters.status().field().empty(), "an error without a field");
  return 0;
}
