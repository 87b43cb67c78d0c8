// A small Hugging Face folder with random weights, for tests to read, break and convert.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "model/families/families.h"
#include "tensor/buffer.h"
#include "tensor/convert.h"
#include "tensor/safetensors.h"

namespace tandem {

inline void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Each test gets a separate folder, removed at the end.
class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("tandem_test." + std::to_string(::getpid()) + "." + std::to_string(count++));
    std::filesystem::create_directories(folder_);
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

struct HfFolder {
  std::string extra_config;  // more keys of config.json, each after a comma
  DType stored = DType::kBF16;
  int num_shards = 1;
  bool with_head = true;
  bool scales_by_row = false;  // of fp8 weights; else one per weight

  std::string Config() const {
    return R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 64,
               "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
               "num_key_value_heads": 4, "eos_token_id": [2, 3], "bos_token_id": 1,
               "torch_dtype": "bfloat16")" +
           extra_config + "}";
  }

  // Writes config.json and the weights; `change` may edit the tensors before they are written.
  void Write(const std::filesystem::path& folder,
             const std::function<void(std::map<std::string, Tensor>&)>& change = {}) const {
    std::filesystem::create_directories(folder);
    WriteText(folder / "config.json", Config());
    const auto spec = SpecFromHfConfig(Config());
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    std::vector<Buffer> memory;
    std::map<std::string, Tensor> tensors;
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0.0f, 0.1f);
    const auto add = [&](const WeightId& id) {
      const WeightPart part = id.part;
      Shape shape = WeightShape(*spec, id);
      if (part == WeightPart::kScale) shape = scales_by_row ? Shape{shape[0], 1} : Shape{1};
      const DType asked = WeightDType(*spec, id);
      const DType dtype = asked == spec->dtype ? stored : asked;
      const auto count = static_cast<size_t>(shape.NumElements());
      memory.push_back(Buffer::OnHost(count * SizeOf(dtype)));
      const Tensor tensor = memory.back().View(dtype, shape);
      tensors[StandardSource(*spec, id).name] = tensor;
      if (dtype == DType::kF8E4M3) {
        // Any sign and mantissa, magnitude up to 15.
        for (size_t i = 0; i < count; ++i) tensor.As<uint8_t>()[i] = random() & 0xd7;
        return;
      }
      std::vector<float> values(count);
      for (float& value : values) {
        value = normal(random) + (shape.rank() == 1 && part != WeightPart::kBias ? 1.0f : 0.0f);
        if (IsScale(part)) value = 0.01f * std::abs(value);
      }
      ConvertElements({values.data(), DType::kF32, shape, Device{}}, tensor);
    };
    ModelSpec stored_spec = *spec;
    stored_spec.tied_head = !with_head;
    for (const WeightId& id : StoredWeights(stored_spec)) add(id);
    if (change) change(tensors);
    WriteShards(folder, tensors);
  }

 private:
  void WriteShards(const std::filesystem::path& folder,
                   const std::map<std::string, Tensor>& tensors) const {
    std::vector<std::vector<NamedTensor>> shards(static_cast<size_t>(num_shards));
    std::string map;
    size_t next = 0;
    for (const auto& [name, tensor] : tensors) {
      const size_t shard = next++ % shards.size();
      shards[shard].push_back({name, tensor});
      map += (map.empty() ? "\"" : ", \"") + name + "\": \"" + ShardName(shard) + "\"";
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      ASSERT_TRUE(WriteSafetensors(folder / ShardName(i), shards[i], {{"format", "pt"}}).ok());
    }
    if (num_shards > 1) {
      WriteText(folder / "model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
    }
  }
  std::string ShardName(size_t i) const {
    return num_shards == 1 ? "model.safetensors" : "model-" + std::to_string(i) + ".safetensors";
  }
};

}  // namespace tandem
