// The texts that calibration reads; without_text.cc replaces this in a build without tokenizers.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/models/calibration.h"
#include "apps/models/dictionary.h"
#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "model/prompt_rules.h"
#include "serve/text_codec.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{1} << 30;

Result<std::string> TextOfLine(const std::string& line, const std::string& where) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    for (const char* key : {"text", "article", "prompt"}) {
      const auto found = json.find(key);
      if (found != json.end() && found->is_string()) return found->get<std::string>();
    }
  }
  return InvalidArgument(where + ": is not an object with a text under \"text\", \"article\" or " +
                         "\"prompt\"");
}

// Turns texts into samples.
struct Sampler {
  const serve::TextCodec& codec;
  PromptRules rules;
  int64_t size;     // samples, at most
  int64_t longest;  // tokens of one, at most
  std::vector<std::vector<int32_t>> samples = {};

  bool full() const { return std::ssize(samples) >= size; }

  // `where` the text is from, for messages.
  Status Add(const std::vector<int32_t>& tokens, std::string where) {
    if (tokens.empty()) return {};
    std::vector<int32_t> sample = CutPrompt(rules, tokens, longest);
    if (sample.size() < tokens.size()) where += fmt::format(", cut to {} tokens", sample.size());
    const auto layout = LayOutPrompt(rules, sample);
    if (!layout.ok()) return layout.status().Annotate(where);
    samples.push_back(std::move(sample));
    return {};
  }
};

Status ReadFile(const fs::path& path, Sampler& sampler) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path, kMaxFileBytes));
  const bool json = path.extension() == ".jsonl" || path.extension() == ".json";
  for (size_t i = 0; i < lines.size() && !sampler.full(); ++i) {
    if (lines[i].empty()) continue;
    const std::string where = path.string() + ":" + std::to_string(i + 1);
    std::string text = lines[i];
    if (json) {
      TANDEM_ASSIGN_OR_RETURN(text, TextOfLine(lines[i], where));
    }
    const auto tokens = sampler.codec.Encode(text, /*add_special_tokens=*/true);
    if (!tokens.ok()) return tokens.status().Annotate(where);
    TANDEM_RETURN_IF_ERROR(sampler.Add(*tokens, where));
  }
  return {};
}

Status ReadDictionary(Sampler& sampler) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<DictionaryEntry> entries, ReadDictionaryKey());
  const std::vector<QuestionForm>& forms = Dictionary::Forms();
  const auto count = std::min(static_cast<size_t>(sampler.size), entries.size());
  for (size_t i = 0; i < count; ++i) {
    const DictionaryEntry& entry = entries[i * entries.size() / count];
    const std::string question =
        fmt::format(fmt::runtime(forms[i % forms.size()].wording), entry.word);
    TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                            sampler.codec.Encode(question, /*add_special_tokens=*/true));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                            sampler.codec.Encode(entry.answer, /*add_special_tokens=*/false));
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    TANDEM_RETURN_IF_ERROR(sampler.Add(tokens, "the dictionary's question " + question));
  }
  return {};
}

}  // namespace

Result<CalibrationTexts> ReadCalibrationTexts(const fs::path& model_dir,
                                              const CalibrationOptions& options,
                                              const ConfigOptions& config) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, HfReader::Open(model_dir, std::nullopt, config));
  const fs::path& folder = options.tokenizer_dir.empty() ? model_dir : options.tokenizer_dir;
  const auto codec = serve::LoadTextCodec(folder, reader->spec().vocab_size);
  if (!codec.ok()) {
    return codec.status().Annotate("the tokenizer, which calibration reads its texts with");
  }
  CalibrationTexts texts;
  const int64_t longest = std::min(options.longest, reader->spec().max_positions);
  Sampler sampler{.codec = **codec,
                  .rules = PromptRulesOf(reader->spec(), longest),
                  .size = options.size,
                  .longest = longest};
  const std::string& dataset = options.dataset;
  std::error_code error;
  if (fs::is_regular_file(dataset, error)) {
    texts.origin = dataset;
    TANDEM_RETURN_IF_ERROR(ReadFile(dataset, sampler));
  } else if (fs::exists(dataset, error)) {
    return InvalidArgument(dataset +
                           ": is no text file; give a file with a sample a line, or a .jsonl file");
  } else if (dataset.starts_with('/') || dataset.ends_with(".txt") || dataset.ends_with(".jsonl")) {
    return NotFound(dataset + ": there is no such file to calibrate with");
  } else {
    texts.origin = "the embedded dictionary";
    if (!dataset.empty()) texts.origin += ", as " + dataset + " is no file on this machine";
    TANDEM_RETURN_IF_ERROR(ReadDictionary(sampler));
  }
  texts.samples = std::move(sampler.samples);
  if (!texts.samples.empty()) return texts;
  return InvalidArgument(dataset + ": holds no text to calibrate with");
}

}  // namespace tandem::apps
