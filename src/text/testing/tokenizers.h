// The small tokenizers of tests/data/tokenizers for tests of text, and modified copies of them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/source_dir.h"
#include "base/testing/temporary_folder.h"
#include "text/tokenizer.h"

namespace tandem {

inline std::filesystem::path TestTokenizerDir(const std::string& name) {
  return SourceDir() / "tests/data/tokenizers" / name;
}

inline std::shared_ptr<Tokenizer> LoadTestTokenizer(const std::string& name) {
  return Tokenizer::Load(TestTokenizerDir(name)).value();
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tokenizer byte_level, of 628 tokens, with the special token <|extra|> after them.
inline void WriteTokenizerWithExtra(const TemporaryFolder& folder) {
  std::string json = ReadFile(TestTokenizerDir("byte_level") / "tokenizer.json");
  const size_t at = json.find(R"({"id":2,"content":)");
  json.insert(at, R"({"id":628,"content":"<|extra|>","single_word":false,"lstrip":false,)"
                  R"("rstrip":false,"normalized":false,"special":true},)");
  folder.Write("tokenizer.json", json);
}

// Folders of every kind of tokenizer, which tests/golden/make_tokenizer_fixtures.py makes: names
// for TestTokenizerDir.
inline std::vector<std::string> TestTokenizerFolders() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TestTokenizerDir("folders"))) {
    if (entry.is_directory()) names.push_back("folders/" + entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// One tokenizer for each kind of decoder.
inline constexpr const char* kTestTokenizers[] = {"byte_level",      "byte_level_gpt2",
                                                  "metaspace_bytes", "metaspace_decoder",
                                                  "metaspace_kept",  "word_piece"};

}  // namespace tandem
