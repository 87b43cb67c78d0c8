#include "apps/models/dictionary.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace tandem::apps {
namespace {

constexpr int32_t kMaxAnswerTokens = 128;

std::string Worded(std::string wording, const std::string& word) {
  const size_t at = wording.find("{}");
  return wording.replace(at, 2, word);
}

Result<std::vector<DictionaryEntry>> ReadKey(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::vector<DictionaryEntry> entries;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const size_t tab = text.find('\t', begin);
    if (tab >= end) return DataLoss(path.string() + ": a line without a tab");
    entries.push_back({text.substr(begin, tab - begin), text.substr(tab + 1, end - tab - 1)});
    begin = end + 1;
  }
  if (entries.empty()) return DataLoss(path.string() + ": has no entries");
  return entries;
}

Result<std::vector<std::string>> ReadWords(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

const std::vector<QuestionForm>& Dictionary::Forms() {
  static const std::vector<QuestionForm> forms = [] {
    std::vector<QuestionForm> all;
    // The wordings that the recipe also measures (models/dictionary/common.py).
    for (const char* wording :
         {"What does \"{}\" mean?", "Define {}.", "What is the meaning of \"{}\"?",
          "Tell me what {} means.", "What does the word {} mean?",
          "Give me the definition of \"{}\"."}) {
      all.push_back({.name = wording, .wording = wording, .chat = false, .system_prompt = ""});
    }
    all.push_back({.name = "chat", .wording = all[0].wording, .chat = true, .system_prompt = ""});
    all.push_back({.name = "chat with a system prompt",
                   .wording = all[0].wording,
                   .chat = true,
                   .system_prompt = "You are a helpful assistant."});
    return all;
  }();
  return forms;
}

Result<std::vector<DictionaryEntry>> ReadDictionaryKey() {
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path folder, EmbeddedPairFolder());
  return ReadKey(folder / "key.tsv");
}

Result<Dictionary> Dictionary::Open(std::shared_ptr<const serve::TextCodec> codec) {
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path folder, EmbeddedPairFolder());
  Dictionary dictionary;
  TANDEM_ASSIGN_OR_RETURN(dictionary.entries_, ReadDictionaryKey());
  TANDEM_ASSIGN_OR_RETURN(dictionary.made_up_words_, ReadWords(folder / "made_up.txt"));
  dictionary.codec_ = std::move(codec);
  dictionary.end_ids_ = dictionary.codec_->end_ids();
  return dictionary;
}

Result<std::vector<int32_t>> Dictionary::Prompt(const std::string& question,
                                                const QuestionForm& form) const {
  if (!form.chat) return codec_->Encode(question, /*add_special_tokens=*/true);
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!form.system_prompt.empty()) {
    messages.push_back({{"role", "system"}, {"content", form.system_prompt}});
  }
  messages.push_back({{"role", "user"}, {"content", question}});
  TANDEM_ASSIGN_OR_RETURN(const ChatText chat, codec_->RenderChat(messages.dump(), {}));
  return codec_->EncodeChat(chat.text, chat);
}

Result<Request> Dictionary::Ask(const std::string& word, const QuestionForm& form) const {
  Request request;
  TANDEM_ASSIGN_OR_RETURN(request.prompt, Prompt(Worded(form.wording, word), form));
  request.max_tokens = kMaxAnswerTokens;
  request.sampling.temperature = 0;
  request.end_ids = end_ids_;
  return request;
}

std::vector<DictionaryEntry> Dictionary::Sample(size_t count) const {
  if (count >= entries_.size()) return entries_;
  std::vector<DictionaryEntry> sample;
  sample.reserve(count);
  for (size_t i = 0; i < count; ++i) sample.push_back(entries_[i * entries_.size() / count]);
  return sample;
}

Result<std::vector<Request>> Dictionary::Questions(size_t count) const {
  std::vector<Request> requests;
  for (const DictionaryEntry& entry : Sample(count)) {
    TANDEM_ASSIGN_OR_RETURN(requests.emplace_back(), Ask(entry.word, Forms().front()));
  }
  return requests;
}

std::string Dictionary::Decode(const std::vector<int32_t>& tokens) const {
  const auto decoder = codec_->NewDecoder({}, /*skip_special=*/true);
  std::string text;
  for (const int32_t token : tokens) text += decoder->Push(token);
  return text + decoder->Flush();
}

}  // namespace tandem::apps
