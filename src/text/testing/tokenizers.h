// The small tokenizers of tests/data/tokenizers for the tests of this folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/testing/source_dir.h"
#include "text/tokenizer.h"

namespace tandem {

inline std::filesystem::path TestTokenizerDir(const std::string& name) {
  return SourceDir() / "tests/data/tokenizers" / name;
}

inline std::shared_ptr<Tokenizer> LoadTestTokenizer(const std::string& name) {
  return Tokenizer::Load(TestTokenizerDir(name)).value();
}

inline constexpr const char* kTestTokenizers[] = {"byte_level", "byte_level_gpt2",
                                                  "metaspace_bytes", "metaspace_decoder"};

}  // namespace tandem
