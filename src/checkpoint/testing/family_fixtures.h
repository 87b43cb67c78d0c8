// The tiny models of each family in tests/data/families, with prompts and the logits of the
// authors' own code (tests/golden/make_family_fixtures.py). Test code, pure functions.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/testing/source_dir.h"
#include "tensor/safetensors.h"

namespace tandem {

inline std::filesystem::path FixtureOf(const std::string& name) {
  return SourceDir() / "tests/data/families" / name;
}

// Of the tests of all models: TANDEM_TEST_FAMILIES names another folder of such models.
inline std::filesystem::path FixturesFolder() {
  const char* other = std::getenv("TANDEM_TEST_FAMILIES");
  return other != nullptr ? std::filesystem::path(other) : FixtureOf("");
}

inline std::vector<std::string> FamilyFixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(FixturesFolder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// A prompt and what followed, with the logits after the prompt and after each token but the last.
struct FamilyCase {
  std::string name;
  std::vector<int32_t> tokens;
  Tensor logits;  // [rows, vocab]: of the last rows

  std::span<const int32_t> Prompt() const {
    return std::span(tokens).first(tokens.size() - static_cast<size_t>(logits.dim(0)) + 1);
  }
};

inline std::vector<FamilyCase> CasesOf(const SafetensorsFile& file) {
  std::vector<FamilyCase> cases;
  for (const auto& [name, tensor] : file.tensors()) {
    const size_t dot = name.find(".tokens");
    if (dot == std::string::npos) continue;
    FamilyCase one{name.substr(0, dot), {}, file.tensors().at(name.substr(0, dot) + ".logits")};
    one.tokens.assign(tensor.As<int32_t>(), tensor.As<int32_t>() + tensor.NumElements());
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace tandem
