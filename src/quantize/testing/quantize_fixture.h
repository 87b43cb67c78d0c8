// A small model in a folder of its own, and what tests of its quantization have in common.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/hf_folder.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/relative_error.h"
#include "quantize/quantize.h"

namespace tandem {

// Two layers; groups of 64 fit their sizes, and heads share values by two.
inline const HfFolder kFolder = {.extra_config = ", \"num_hidden_layers\": 2"};

// One instruction set for all backends: "auto" measures, and may choose differently each time.
inline const ops::CpuOptions kCpu = {
    .num_threads = 2, .pin_threads = false, .isa = ops::SupportedCpuIsas().back()};

inline std::vector<std::vector<int32_t>> Samples() {
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> samples;
  for (const size_t length : {40, 1, 77, 120, 30}) {
    std::vector<int32_t>& sample = samples.emplace_back(length);
    for (int32_t& token : sample) token = static_cast<int32_t>(random() % 96);
  }
  return samples;
}

inline std::map<std::string, std::string> FilesOf(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename()] = *ReadTextFile(entry.path());
  }
  return files;
}

class QuantizeTest : public FolderTest {
 protected:
  QuantizeTest() { kFolder.Write(folder_ / "hf"); }

  QuantizeOptions Options(const std::string& qformat, const std::string& name = "out") const {
    return {.model_dir = folder_ / "hf",
            .output_dir = folder_ / name,
            .recipe = RecipeOf(qformat, 64, "none").value(),
            .num_threads = 2};
  }
  Result<WriteReport> Run(const QuantizeOptions& options) {
    return Quantize(options, Samples(), *backend_);
  }
  // Logits of a text, one list after the other.
  std::vector<float> Logits(WeightSource& source) {
    auto weights = LoadWeights(source, *backend_, 64);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    DecoderTestDriver driver(*weights, *backend_, 64);
    std::vector<float> all;
    for (const std::vector<float>& row : driver.Feed(std::vector<int32_t>{1, 50, 7, 93, 22, 8})) {
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  // From the plain model's logits.
  double Error(WeightSource& quantized) {
    const auto plain = HfReader::Open(folder_ / "hf").value();
    return RelativeError(Logits(quantized), Logits(*plain));
  }

  std::unique_ptr<ops::Backend> backend_ = ops::MakeCpuBackend(kCpu).value();
};

}  // namespace tandem
