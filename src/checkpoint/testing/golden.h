// The tiny models of tests/data/tiny (or, of other tools, tests/data/quantized) and the results of
// Hugging Face transformers for them (tests/golden/). Test code, pure functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/testing/source_dir.h"
#include "model/json_fields.h"
#include "model/testing/relative_error.h"
#include "tensor/safetensors.h"

namespace tandem {

inline std::filesystem::path GoldenFolder() { return SourceDir() / "tests/data/tiny"; }

inline std::vector<std::string> GoldenModels(const std::filesystem::path& folder = GoldenFolder()) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / "golden.safetensors")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A model's prompts by name.
inline std::map<std::string, std::vector<int32_t>> GoldenPrompts(
    const std::filesystem::path& model) {
  const auto json = JsonFields::Parse(*ReadTextFile(model / "golden.json"));
  EXPECT_TRUE(json.ok()) << json.status().message();
  const auto prompts = json->Object("prompts");
  EXPECT_TRUE(prompts.has_value());
  std::map<std::string, std::vector<int32_t>> tokens;
  for (const std::string& name : prompts->Keys()) {
    for (const int64_t token : prompts->Ints(name)) {
      tokens[name].push_back(static_cast<int32_t>(token));
    }
  }
  return tokens;
}

// |ours - golden| / |golden| over all positions.
inline double RelativeError(const std::vector<std::vector<float>>& ours, const Tensor& golden) {
  std::vector<std::span<const float>> rows;
  for (int64_t row = 0; row < golden.dim(0); ++row) {
    rows.emplace_back(golden.As<float>() + row * golden.dim(1), static_cast<size_t>(golden.dim(1)));
  }
  return RelativeError(ours, rows);
}

}  // namespace tandem
