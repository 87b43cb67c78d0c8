#include "checkpoint/hf_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/check_weights.h"
#include "checkpoint/testing/hf_folder.h"
#include "checkpoint/testing/torch_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

class HfReaderTest : public FolderTest {
 protected:
  // Opening must fail with every one of `parts` in the message.
  void ExpectRefused(std::initializer_list<std::string> parts) const {
    const auto reader = HfReader::Open(folder_);
    ASSERT_FALSE(reader.ok());
    for (const std::string& part : parts) {
      EXPECT_NE(reader.status().message().find(part), std::string::npos)
          << part << " not in: " << reader.status().message();
    }
  }
};

float At(const Tensor& tensor, int64_t i) { return ToFloat(tensor.As<BFloat16>()[i]); }

TEST_F(HfReaderTest, ReadsOneFileAndShardsAlike) {
  HfFolder{}.Write(folder_ / "one");
  HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = 3}.Write(folder_ / "three");
  const auto one = HfReader::Open(folder_ / "one");
  const auto three = HfReader::Open(folder_ / "three");
  ASSERT_TRUE(one.ok()) << one.status().message();
  ASSERT_TRUE(three.ok()) << three.status().message();
  EXPECT_EQ((*one)->spec(), (*three)->spec());
  const auto a = (*one)->Get({WeightRole::kDown, 1});
  const auto b = (*three)->Get({WeightRole::kDown, 1});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->shape, (Shape{64, 128}));
  EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0);
}

TEST_F(HfReaderTest, ReadsWhatTorchSavedAsItReadsSafetensors) {
  HfFolder{}.Write(folder_ / "safe");
  const auto expected = HfReader::Open(folder_ / "safe").value();
  for (const int num_shards : {1, 3}) {
    const fs::path folder = folder_ / std::to_string(num_shards);
    HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = num_shards}.Write(folder);
    SaveWithTorch(folder);
    const auto reader = HfReader::Open(folder);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ((*reader)->spec(), expected->spec());
    for (const WeightId& id : StoredWeights(expected->spec())) {
      const auto a = expected->Get(id);
      const auto b = (*reader)->Get(id);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_TRUE(a->dtype == b->dtype && a->shape == b->shape);
      EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0);
    }
  }
}

TEST_F(HfReaderTest, PrefersSafetensorsToWhatTorchSaved) {
  HfFolder{}.Write(folder_);
  WriteText(folder_ / "pytorch_model.bin", "x");
  EXPECT_TRUE(HfReader::Open(folder_).ok());
}

TEST_F(HfReaderTest, NamesTheShardOfTorchThatIsMissing) {
  HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = 3}.Write(folder_);
  SaveWithTorch(folder_);
  fs::remove(folder_ / "pytorch_model-1.bin");
  ExpectRefused({"pytorch_model-1.bin", "named by pytorch_model.bin.index.json"});
}

TEST_F(HfReaderTest, ConvertsToTheTypeOfTheConfig) {
  HfFolder{.extra_config = "", .stored = DType::kF32}.Write(folder_ / "f32");
  HfFolder{.extra_config = "", .stored = DType::kBF16}.Write(folder_ / "bf16");
  const auto f32 = HfReader::Open(folder_ / "f32");
  const auto bf16 = HfReader::Open(folder_ / "bf16");
  ASSERT_TRUE(f32.ok() && bf16.ok());
  const auto a = (*f32)->Get({WeightRole::kUp, 0});
  const auto b = (*bf16)->Get({WeightRole::kUp, 0});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->dtype, DType::kBF16);
  for (int64_t i = 0; i < a->NumElements(); ++i) ASSERT_EQ(At(*a, i), At(*b, i));
  const auto wide = HfReader::Open(folder_ / "bf16", DType::kF32);
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ((*wide)->Get({WeightRole::kUp, 0})->As<float>()[5], At(*b, 5));
}

TEST_F(HfReaderTest, TakesTheTypeOfTheWeightsWhenTheConfigNamesNone) {
  HfFolder{.extra_config = ", \"torch_dtype\": null", .stored = DType::kF16}.Write(folder_);
  const auto reader = HfReader::Open(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->spec().dtype, DType::kF16);
}

TEST_F(HfReaderTest, ReadsMisalignedFiles) {
  HfFolder{}.Write(folder_);
  // One extra space in the header moves all data to odd addresses.
  const fs::path path = folder_ / "model.safetensors";
  std::string bytes = *ReadTextFile(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  bytes.insert(8 + header, " ");
  ++header;
  std::memcpy(bytes.data(), &header, 8);
  const auto before = HfReader::Open(folder_);
  ASSERT_TRUE(before.ok());
  const float expected = At(*(*before)->Get({WeightRole::kGate, 1}), 77);
  WriteText(folder_ / "moved", bytes);
  fs::rename(folder_ / "moved", path);
  const auto reader = HfReader::Open(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const auto gate = (*reader)->Get({WeightRole::kGate, 1});
  ASSERT_TRUE(gate.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(gate->data) % 2, 0u);
  EXPECT_EQ(At(*gate, 77), expected);
}

TEST_F(HfReaderTest, TiesTheHeadUnlessADifferentOneIsStored) {
  const std::string tied = ", \"tie_word_embeddings\": true";
  HfFolder{.extra_config = tied, .stored = DType::kBF16, .num_shards = 1, .with_head = false}.Write(
      folder_ / "absent");
  HfFolder{.extra_config = tied}.Write(folder_ / "same", [](Tensors& tensors) {
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  });
  HfFolder{.extra_config = tied}.Write(folder_ / "other");
  EXPECT_TRUE((*HfReader::Open(folder_ / "absent"))->spec().tied_head);
  EXPECT_TRUE((*HfReader::Open(folder_ / "same"))->spec().tied_head);
  EXPECT_FALSE((*HfReader::Open(folder_ / "other"))->spec().tied_head);
}

TEST_F(HfReaderTest, NamesAMissingHeadThatIsNotTied) {
  HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = 1, .with_head = false}.Write(
      folder_);
  ExpectRefused({"model.safetensors", "tensor \"lm_head.weight\" is missing"});
}

// config.json was taken from elsewhere.
TEST_F(HfReaderTest, TellsWeightsThatAreQuantizedThoughTheConfigDoesNotSaySo) {
  const struct {
    const char* suffix;
    const char* tool;
  } kTools[] = {{".qweight", "GPTQ or AutoAWQ"},
                {".weight_packed", "compressed-tensors"},
                {".weight.absmax", "bitsandbytes"},
                {".W_q", "HQQ"}};
  for (const auto& [suffix, tool] : kTools) {
    const std::string name = "model.layers.1.mlp.up_proj";
    HfFolder{}.Write(folder_, [&, suffix = suffix](Tensors& tensors) {
      tensors[name + suffix] = tensors.at(name + ".weight");
      tensors.erase(name + ".weight");
    });
    ExpectRefused({"model.safetensors: tensor \"" + name + ".weight\" is missing",
                   "tensor \"" + name + suffix + "\" is there",
                   std::string("a weight that ") + tool + " quantized",
                   "config.json has no quantization_config"});
  }
  HfFolder{.extra_config = R"(, "quantization_config": {"quant_method": "fp8",
                             "activation_scheme": "dynamic"})"}
      .Write(folder_);
  WriteText(folder_ / "config.json", HfFolder{}.Config());
  ExpectRefused({"q_proj.weight_scale\"", "config.json has no quantization_config"});
}

TEST_F(HfReaderTest, NamesAPackedWeightThatIsMissingOrNotOfIntegers) {
  const std::string name = "model.layers.1.mlp.up_proj";
  for (const bool is_there : {false, true}) {
    HfFolder{}.Write(folder_, [&](Tensors& tensors) {
      if (is_there) tensors[name + ".qweight"] = tensors.at(name + ".weight");
      tensors.erase(name + ".weight");
    });
    WriteText(folder_ / "config.json", HfFolder{.extra_config = R"(, "quantization_config": {
        "quant_method": "gptq", "bits": 4, "group_size": 64})"}
                                           .Config());
    if (is_there) {
      ExpectRefused({"tensor \"" + name + ".qweight\": is stored as BF16"});
    } else {
      ExpectRefused(
          {"tensor \"" + name + ".qweight\" is missing, and so is tensor \"" + name + ".weight\""});
    }
  }
}

TEST_F(HfReaderTest, NamesAMissingTensor) {
  HfFolder{}.Write(folder_,
                   [](Tensors& tensors) { tensors.erase("model.layers.1.mlp.up_proj.weight"); });
  ExpectRefused({"model.safetensors", "tensor \"model.layers.1.mlp.up_proj.weight\" is missing"});
}

TEST_F(HfReaderTest, NamesAMissingBias) {
  HfFolder{.extra_config = ", \"attention_bias\": true"}.Write(
      folder_, [](Tensors& tensors) { tensors.erase("model.layers.0.self_attn.o_proj.bias"); });
  ExpectRefused({"model.layers.0.self_attn.o_proj.bias"});
}

TEST_F(HfReaderTest, NamesAWrongShape) {
  HfFolder{}.Write(folder_, [](Tensors& tensors) {
    Tensor& tensor = tensors["model.layers.0.self_attn.k_proj.weight"];
    tensor = tensor.Rows(16);
  });
  ExpectRefused({"model.safetensors", "k_proj.weight", "[16, 64]", "[32, 64]"});
}

TEST_F(HfReaderTest, NamesAnUnusableType) {
  HfFolder{}.Write(folder_, [](Tensors& tensors) {
    Tensor& tensor = tensors["model.layers.0.mlp.down_proj.weight"];
    tensor = {tensor.data, DType::kI8, tensor.shape, Device{}};
  });
  ExpectRefused({"down_proj.weight", "I8"});
}

constexpr const char* kStaticFp8 =
    R"(, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"})";

TEST_F(HfReaderTest, Fp8WeightsComeWithScalesOfEveryShape) {
  for (const bool by_row : {false, true}) {
    float expected = 0;
    HfFolder{.extra_config = kStaticFp8, .scales_by_row = by_row}.Write(
        folder_, [&](Tensors& tensors) {
          Tensor& scale = tensors.at("model.layers.1.mlp.up_proj.weight_scale");
          expected = scale.As<float>()[by_row ? 5 : 0];
          // modelopt writes scalars, others vectors.
          scale.shape = by_row ? Shape{128} : Shape{};
        });
    const auto reader = HfReader::Open(folder_);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ((*reader)->Get({WeightRole::kUp, 1})->dtype, DType::kF8E4M3);
    EXPECT_EQ((*reader)->Get({WeightRole::kHead, 0})->dtype, DType::kBF16);
    const auto scale = (*reader)->Get({WeightRole::kUp, 1, WeightPart::kScale});
    ASSERT_TRUE(scale.ok()) << scale.status().message();
    EXPECT_EQ(scale->shape, (Shape{128}));
    EXPECT_EQ(scale->As<float>()[5], expected);
    EXPECT_GT(*(*reader)->Get({WeightRole::kUp, 1, WeightPart::kInputScale})->As<float>(), 0.0f);
  }
}

TEST_F(HfReaderTest, FindsTheCacheScalesOfEachLayerUnderEveryName) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"k_proj.k_scale", "v_proj.v_scale"},
      {"k_scale", "v_scale"},
      {"attn.k_scale", "attn.v_scale"},
      {"qkv_proj.k_scale", "qkv_proj.v_scale"},
      {"k_proj.output_scale", "v_proj.output_scale"},
      {"kv_scale", "kv_scale"}};
  for (const auto& [key, value] : names) {
    std::vector<float> numbers = {0.5f, 0.25f, 0.125f, 2.0f};
    HfFolder{}.Write(folder_, [&](Tensors& tensors) {
      for (size_t layer = 0; layer < 2; ++layer) {
        const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
        const auto put = [&](const std::string& name, size_t i) {
          tensors[prefix + name] = {&numbers[i], DType::kF32, layer == 0 ? Shape{} : Shape{1}, {}};
        };
        put(key, 2 * layer);
        if (value != key) put(value, 2 * layer + 1);
      }
    });
    const auto reader = HfReader::Open(folder_);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ((*reader)->spec().cache_scales, DType::kF8E4M3);
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (const WeightRole role : {WeightRole::kKey, WeightRole::kValue}) {
        const auto scales = (*reader)->Get({role, layer, WeightPart::kCacheScale});
        ASSERT_TRUE(scales.ok()) << scales.status().message();
        EXPECT_EQ(scales->shape, (Shape{4}));
        const bool own = role == WeightRole::kValue && value != key;
        EXPECT_EQ(scales->As<float>()[3], numbers[static_cast<size_t>(2 * layer + (own ? 1 : 0))]);
      }
    }
  }
}

TEST_F(HfReaderTest, TheConfigSaysForWhichCacheScalesAre) {
  const auto config = [](const std::string& scheme) {
    return R"(, "quantization_config": {"quant_method": "compressed-tensors", "format": "dense",
               "config_groups": {}, "kv_cache_scheme": )" +
           scheme + "}";
  };
  struct Case {
    std::string scheme;
    std::optional<DType> expected;
  };
  const Case cases[] = {
      {R"({"num_bits": 8, "type": "float", "strategy": "tensor"})", DType::kF8E4M3},
      {R"({"num_bits": 8, "type": "int", "symmetric": true})", DType::kI8},
      {R"({"num_bits": 8, "type": "int", "symmetric": false})", std::nullopt},
      {R"({"num_bits": 4, "type": "int"})", std::nullopt}};
  std::vector<float> numbers = {0.5f, 0.25f};
  for (const auto& [scheme, expected] : cases) {
    HfFolder{.extra_config = config(scheme)}.Write(folder_, [&](Tensors& tensors) {
      for (const char* layer : {"0", "1"}) {
        const std::string prefix = std::string("model.layers.") + layer + ".self_attn.";
        tensors[prefix + "k_scale"] = {&numbers[0], DType::kF32, {1}, {}};
        tensors[prefix + "v_scale"] = {&numbers[1], DType::kF32, {1}, {}};
      }
    });
    const auto reader = HfReader::Open(folder_);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ((*reader)->spec().cache_scales, expected) << scheme;
    EXPECT_TRUE((*reader)->spec().quantization.is_plain());
  }
  // Described, but not stored.
  HfFolder{.extra_config = config(cases[1].scheme)}.Write(folder_, [](Tensors& tensors) {
    std::erase_if(tensors, [](const auto& named) { return named.first.ends_with("_scale"); });
  });
  EXPECT_EQ(HfReader::Open(folder_).value()->spec().cache_scales, std::nullopt);
}

TEST_F(HfReaderTest, CacheScalesOfSomeLayersAreNotUsed) {
  std::vector<float> numbers = {0.5f, 0.25f};
  HfFolder{}.Write(folder_, [&](Tensors& tensors) {
    tensors["model.layers.0.self_attn.k_scale"] = {&numbers[0], DType::kF32, {1}, {}};
    tensors["model.layers.0.self_attn.v_scale"] = {&numbers[1], DType::kF32, {1}, {}};
  });
  const auto reader = HfReader::Open(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->spec().cache_scales, std::nullopt);
}

TEST_F(HfReaderTest, NamesWhatIsWrongWithScales) {
  const std::string up = "model.layers.1.mlp.up_proj.";
  struct Case {
    std::function<void(Tensors&)> change;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {[&](Tensors& t) { t.erase(up + "weight_scale"); }, {up + "weight_scale", "missing"}},
      {[&](Tensors& t) { t.erase(up + "input_scale"); }, {up + "input_scale", "missing"}},
      {[&](Tensors& t) { t[up + "weight_scale"].shape = {64, 2}; }, {"weight_scale", "[64, 2]"}},
      {[&](Tensors& t) { t[up + "weight_scale"].shape = {64}; }, {"weight_scale", "[64]", "[128]"}},
      {[&](Tensors& t) { t[up + "weight_scale"].dtype = DType::kI32; }, {"weight_scale", "I32"}},
      {[&](Tensors& t) { t[up + "weight_scale"].As<float>()[9] = NAN; }, {"weight_scale", "nan"}},
      {[&](Tensors& t) { t[up + "weight_scale"].As<float>()[9] = INFINITY; },
       {"weight_scale", "inf"}},
      {[&](Tensors& t) { t[up + "weight_scale"].As<float>()[9] = 0; },
       {"weight_scale", "positive"}},
      {[&](Tensors& t) { t[up + "input_scale"].As<float>()[0] = -1; }, {"input_scale", "positive"}},
      {[&](Tensors& t) { t[up + "input_scale"].As<float>()[0] = 1e-45f; },
       {"input_scale", "1e-45", "denormal"}},
      {[&](Tensors& t) {
         t[up + "weight"] = t["lm_head.weight"], t[up + "weight"].shape = {128, 48};
       },
       {"up_proj.weight", "[128, 48]", "[128, 64]"}},
      {[&](Tensors& t) { t[up + "weight"].dtype = DType::kI8; },
       {"up_proj.weight", "I8", "F8_E4M3"}},
      {[&](Tensors& t) { t["lm_head.weight"].dtype = DType::kF8E4M3; },
       {"lm_head.weight_scale", "missing"}},
  };
  for (const Case& c : cases) {
    HfFolder{.extra_config = kStaticFp8, .scales_by_row = true}.Write(folder_, c.change);
    const auto reader = HfReader::Open(folder_);
    ASSERT_FALSE(reader.ok()) << c.named[0];
    for (const std::string& part : c.named) {
      EXPECT_NE(reader.status().message().find(part), std::string::npos)
          << part << " not in: " << reader.status().message();
    }
  }
}

TEST_F(HfReaderTest, RefusesFp8WeightsThatTheConfigDoesNotDescribe) {
  HfFolder{.extra_config = kStaticFp8}.Write(folder_);
  WriteText(folder_ / "config.json", HfFolder{}.Config());
  ExpectRefused({"q_proj.weight", "F8_E4M3", "F32, F16 or BF16"});
}

TEST_F(HfReaderTest, FindsWeightsThatAreNotFinite) {
  HfFolder{}.Write(folder_, [](Tensors& tensors) {
    tensors["model.layers.1.self_attn.v_proj.weight"].As<BFloat16>()[5] = {0x7fc0};
    tensors["model.layers.1.self_attn.k_proj.weight"].As<BFloat16>()[0] = {0xff80};
  });
  const auto reader = HfReader::Open(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const auto bad = FindNonFinite(**reader);
  ASSERT_TRUE(bad.ok());
  ASSERT_EQ(bad->size(), 1u);
  EXPECT_EQ(bad->front().name, "transformer.layers.1.attention.qkv.weight");
  EXPECT_EQ(bad->front().count, 2);
}

TEST_F(HfReaderTest, NamesAMissingShard) {
  HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = 3}.Write(folder_);
  fs::remove(folder_ / "model-1.safetensors");
  ExpectRefused({"model-1.safetensors", "missing"});
}

TEST_F(HfReaderTest, NamesATruncatedShard) {
  HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = 3}.Write(folder_);
  const fs::path path = folder_ / "model-2.safetensors";
  fs::resize_file(path, fs::file_size(path) - 100);
  ExpectRefused({"model-2.safetensors", "tensor \"", "truncated"});
}

TEST_F(HfReaderTest, NamesATensorThatIsNotWhereTheIndexPutsIt) {
  HfFolder{.extra_config = "", .stored = DType::kBF16, .num_shards = 2}.Write(folder_);
  std::string index = *ReadTextFile(folder_ / "model.safetensors.index.json");
  const size_t at = index.find("lm_head.weight\": \"model-") + 24;
  index[at] = index[at] == '0' ? '1' : '0';
  WriteText(folder_ / "model.safetensors.index.json", index);
  ExpectRefused({"tensor \"lm_head.weight\" is missing", "model.safetensors.index.json"});
}

TEST_F(HfReaderTest, RefusesAnIndexThatLeavesTheFolder) {
  HfFolder{}.Write(folder_);
  fs::remove(folder_ / "model.safetensors");
  for (const char* shard : {"../x.safetensors", "/etc/passwd", "a/b.safetensors", ""}) {
    WriteText(folder_ / "model.safetensors.index.json",
              std::string("{\"weight_map\": {\"a\": \"") + shard + "\"}}");
    ExpectRefused({"index.json", "not the name of a file"});
  }
  WriteText(folder_ / "model.safetensors.index.json", "{\"weight_map\": {\"a\": 7}}");
  ExpectRefused({"index.json", "weight_map.a"});
  WriteText(folder_ / "model.safetensors.index.json", "{}");
  ExpectRefused({"index.json", "weight_map"});
}

TEST_F(HfReaderTest, SaysWhatItCannotRead) {
  ExpectRefused({"config.json"});
  HfFolder{}.Write(folder_);
  fs::remove(folder_ / "model.safetensors");
  ExpectRefused({"none of model.safetensors", "pytorch_model.bin.index.json"});
  WriteText(folder_ / "pytorch_model.bin", "x");
  ExpectRefused({"pytorch_model.bin: not a ZIP archive"});
  fs::rename(folder_ / "pytorch_model.bin", folder_ / "consolidated.00.pth");
  ExpectRefused({"consolidated.00.pth", "save_pretrained"});
  fs::rename(folder_ / "consolidated.00.pth", folder_ / "q4.gguf");
  ExpectRefused({"q4.gguf", "GGUF"});
  WriteText(folder_ / "config.json", "{\"architectures\": [\"MambaForCausalLM\"]}");
  ExpectRefused({"config.json", "MambaForCausalLM", "LlamaForCausalLM"});
}

}  // namespace
}  // namespace tandem
