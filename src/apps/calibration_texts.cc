// The texts that calibration reads; without_text.cc replaces this in a build without tokenizers.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/calibration.h"
#include "apps/dictionary.h"
#include "base/file.h"
#include "checkpoint/hf_reader.h"
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

void AddSample(std::vector<int32_t> tokens, int64_t longest, CalibrationTexts& texts) {
  if (tokens.empty()) return;
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(longest)));
  texts.samples.push_back(std::move(tokens));
}

Status ReadFile(const fs::path& path, int64_t size, int64_t longest, const serve::TextCodec& codec,
                CalibrationTexts& texts) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path, kMaxFileBytes));
  const bool json = path.extension() == ".jsonl" || path.extension() == ".json";
  for (size_t i = 0; i < lines.size() && std::ssize(texts.samples) < size; ++i) {
    if (lines[i].empty()) continue;
    const std::string where = path.string() + ":" + std::to_string(i + 1);
    std::string text = lines[i];
    if (json) {
      TANDEM_ASSIGN_OR_RETURN(text, TextOfLine(lines[i], where));
    }
    auto tokens = codec.Encode(text, /*add_special_tokens=*/true);
    if (!tokens.ok()) return tokens.status().Annotate(where);
    AddSample(*std::move(tokens), longest, texts);
  }
  return {};
}

Status ReadDictionary(int64_t size, int64_t longest, const serve::TextCodec& codec,
                      CalibrationTexts& texts) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<DictionaryEntry> entries, ReadDictionaryKey());
  const std::vector<QuestionForm>& forms = Dictionary::Forms();
  const auto count = std::min(static_cast<size_t>(size), entries.size());
  for (size_t i = 0; i < count; ++i) {
    const DictionaryEntry& entry = entries[i * entries.size() / count];
    const std::string question =
        fmt::format(fmt::runtime(forms[i % forms.size()].wording), entry.word);
    TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                            codec.Encode(question, /*add_special_tokens=*/true));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                            codec.Encode(entry.answer, /*add_special_tokens=*/false));
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    AddSample(std::move(tokens), longest, texts);
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
  const std::string& dataset = options.dataset;
  std::error_code error;
  if (fs::is_regular_file(dataset, error)) {
    texts.origin = dataset;
    TANDEM_RETURN_IF_ERROR(ReadFile(dataset, options.size, longest, **codec, texts));
  } else if (dataset.starts_with('/') || dataset.ends_with(".txt") || dataset.ends_with(".jsonl")) {
    return NotFound(dataset + ": there is no such file to calibrate with");
  } else {
    texts.origin = "the embedded dictionary";
    if (!dataset.empty()) texts.origin += ", as " + dataset + " is no file on this machine";
    TANDEM_RETURN_IF_ERROR(ReadDictionary(options.size, longest, **codec, texts));
  }
  if (!texts.samples.empty()) return texts;
  return InvalidArgument(dataset + ": holds no text to calibrate with");
}

}  // namespace tandem::apps
