// Replaces tokenizers and the server in a build without them (preset `engine`).
#include "apps/bench/bench.h"
#include "apps/cli/verbs.h"
#include "apps/lmi/keys.h"
#include "apps/models/calibration.h"
#include "apps/models/describe_model.h"
#include "apps/models/local_model.h"

namespace tandem::apps {

std::vector<Command> TextCommands() { return {}; }

Result<CalibrationTexts> ReadCalibrationTexts(const std::filesystem::path&,
                                              const CalibrationOptions&, const ConfigOptions&) {
  return Unimplemented("this build has no tokenizer to read calibration texts with");
}

std::string LmiKeysMarkdown() { return "this build has no server\n"; }

Result<std::string> DescribeTokenizer(const std::filesystem::path&) {
  return Unimplemented("this build reads no tokenizers");
}

Result<std::vector<Request>> DictionaryQuestions(const Session&, size_t) {
  return Unimplemented("this build has no tokenizer: give --input_len to bench with token ids");
}

Result<std::vector<std::shared_ptr<const TokenConstraint>>> DummyGrammars(
    const Session&, std::span<const Request>) {
  return Unimplemented("this build has no grammars: use a full build for bench --grammar");
}

Result<std::filesystem::path> LocalModel(const std::filesystem::path& named, const OptionValues&,
                                         const std::function<Status()>&) {
  return named;  // whoever opens it says that there is no such folder
}

Result<std::filesystem::path> LocalTokenizer(const std::filesystem::path& named,
                                             const OptionValues&, const std::function<Status()>&) {
  return named;
}

Status BenchServe(const BenchOptions&, const OptionValues&, Console&) {
  return Unimplemented("this build has no HTTP client: use a full build for bench serve");
}

}  // namespace tandem::apps
