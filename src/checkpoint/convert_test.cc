#include "checkpoint/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/hf_reader.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "model/decoder/weights.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kBiases = ", \"attention_bias\": true, \"mlp_bias\": true";
constexpr const char* kStaticFp8 =
    R"(, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"})";
constexpr const char* kDynamicFp8 =
    R"(, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"})";

// Every weight of `a` must be in `b`, bit for bit.
void ExpectSameWeights(WeightSource& a, WeightSource& b) {
  const auto same = [&](const WeightId& id) {
    const auto x = a.Get(id);
    const auto y = b.Get(id);
    ASSERT_TRUE(x.ok()) << x.status().message();
    ASSERT_TRUE(y.ok()) << y.status().message();
    ASSERT_EQ(x->shape, y->shape);
    ASSERT_EQ(x->dtype, y->dtype);
    ASSERT_EQ(std::memcmp(x->data, y->data, static_cast<size_t>(x->NumBytes())), 0)
        << FusedTensorOf(a.spec(), id).name;
  };
  for (const WeightId& id : StoredWeights(a.spec())) same(id);
  same({WeightRole::kHead});
}

class ConvertTest : public FolderTest {
 protected:
  ConvertOptions Options(int64_t tp_size) const {
    return {.model_dir = folder_ / "hf", .output_dir = folder_ / "out", .tp_size = tp_size};
  }
  void ExpectRefused(std::initializer_list<std::string> parts) const {
    const auto opened = OpenCheckpoint(folder_ / "out");
    ASSERT_FALSE(opened.ok());
    for (const std::string& part : parts) {
      EXPECT_NE(opened.status().message().find(part), std::string::npos)
          << part << " not in: " << opened.status().message();
    }
  }
  // Writes out/config.json with one piece of text replaced.
  void EditConfig(const std::string& from, const std::string& to) const {
    std::string text = *ReadTextFile(folder_ / "out" / "config.json");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    WriteText(folder_ / "out" / "config.json", text.replace(at, from.size(), to));
  }
};

TEST_F(ConvertTest, EveryShardingMergesBackToTheSameWeights) {
  struct Case {
    const char* extra_config;
    int64_t tp_size;
    bool parallel_embedding;
    int64_t dim;
  };
  const Case cases[] = {
      {"", 1, false, 0},
      {"", 2, false, 0},
      {"", 4, false, 0},
      {"", 8, false, 0},  // twice as many ranks as key-value heads
      {kBiases, 2, false, 0},
      {kBiases, 8, false, 0},
      {", \"vocab_size\": 97", 4, true, 0},  // the last rank's rows are padded
      {", \"vocab_size\": 97", 2, true, 1},
      {", \"num_key_value_heads\": 1", 4, false, 0},
      {", \"tie_word_embeddings\": true, \"head_dim\": 32", 4, false, 0},
      {", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}", 1, false, 0},
      {", \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": 5000}", 2,
       false, 0},
      {", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
       "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 1024}",
       2, false, 0},
  };
  for (const Case& c : cases) {
    HfFolder{.extra_config = c.extra_config}.Write(
        folder_ / "hf", [&](std::map<std::string, Tensor>& tensors) {
          if (std::string(c.extra_config).find("tie_word") != std::string::npos) {
            tensors.erase("lm_head.weight");
          }
        });
    ConvertOptions options = Options(c.tp_size);
    options.parallel_embedding = c.parallel_embedding;
    options.embedding_sharding_dim = c.dim;
    const auto report = Convert(options);
    ASSERT_TRUE(report.ok()) << c.extra_config << report.status().message();
    const auto hf = HfReader::Open(folder_ / "hf");
    const auto checkpoint = OpenCheckpoint(folder_ / "out");
    ASSERT_TRUE(hf.ok()) << hf.status().message();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ((*hf)->spec(), (*checkpoint)->spec());
    EXPECT_EQ((*checkpoint)->sharding().tp_size, c.tp_size);
    ExpectSameWeights(**hf, **checkpoint);
  }
}

TEST_F(ConvertTest, LayersAreSplitOverStagesAndMergedAgain) {
  HfFolder{.extra_config = ", \"num_hidden_layers\": 5"}.Write(folder_ / "hf");
  const auto hf = HfReader::Open(folder_ / "hf").value();
  for (const int64_t stages : {2, 3, 5}) {
    ConvertOptions options = Options(2);
    options.pp_size = stages;
    const auto report = Convert(options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    const auto checkpoint = OpenCheckpoint(folder_ / "out");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(hf->spec(), (*checkpoint)->spec());
    EXPECT_EQ((*checkpoint)->sharding().pp_size, stages);
    ExpectSameWeights(*hf, **checkpoint);
  }
  // Of 5 layers in 3 stages the second has two, which it counts from 0.
  ConvertOptions options = Options(2);
  options.pp_size = 3;
  ASSERT_TRUE(Convert(options).ok());
  const auto rank = SafetensorsFile::Open(folder_ / "out" / "rank3.safetensors").value();
  EXPECT_EQ(rank->tensors().size(), 2u * 7u);
  EXPECT_TRUE(rank->tensors().contains("transformer.layers.1.mlp.fc.weight"));
  const auto last = SafetensorsFile::Open(folder_ / "out" / "rank5.safetensors").value();
  EXPECT_EQ(last->tensors().size(), 1u * 7u + 2u);
  options.pp_size = 6;
  EXPECT_NE(Convert(options).status().message().find("number of layers (5)"), std::string::npos);
}

TEST_F(ConvertTest, RefusesATensorThatTheConfigDoesNotDescribe) {
  HfFolder{.extra_config = kBiases}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(1)).ok());
  EditConfig("\"mlp_bias\": true", "\"mlp_bias\": false");
  ExpectRefused({"rank0.safetensors", "mlp.fc.bias", "config.json"});
}

TEST_F(ConvertTest, Fp8WeightsKeepTheirScales) {
  for (const char* scheme : {kStaticFp8, kDynamicFp8}) {
    for (const int64_t tp_size : {1, 2, 8}) {
      HfFolder{.extra_config = scheme, .scales_by_row = scheme == kDynamicFp8}.Write(
          folder_ / "hf", [&](std::map<std::string, Tensor>& tensors) {
            if (scheme == kDynamicFp8) return;
            // Parts of a fused weight share their inputs and therefore, in a checkpoint, the input
            // scale.
            for (const char* part : {"q", "k", "v"}) {
              tensors.at(std::string("model.layers.1.self_attn.") + part + "_proj.input_scale")
                  .As<float>()[0] = 0.25f;
              tensors.at(std::string("model.layers.0.self_attn.") + part + "_proj.input_scale")
                  .As<float>()[0] = 0.5f;
            }
          });
      ASSERT_TRUE(Convert(Options(tp_size)).ok());
      const auto hf = HfReader::Open(folder_ / "hf");
      const auto checkpoint = OpenCheckpoint(folder_ / "out");
      ASSERT_TRUE(hf.ok()) << hf.status().message();
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
      EXPECT_EQ((*hf)->spec(), (*checkpoint)->spec());
      EXPECT_FALSE((*checkpoint)->spec().quantization.is_plain());
      ExpectSameWeights(**hf, **checkpoint);
    }
  }
}

TEST_F(ConvertTest, AFusedWeightHasTheLargestInputScaleOfItsParts) {
  HfFolder{.extra_config = kStaticFp8}.Write(
      folder_ / "hf", [](std::map<std::string, Tensor>& tensors) {
        const std::string prefix = "model.layers.1.self_attn.";
        tensors.at(prefix + "q_proj.input_scale").As<float>()[0] = 0.25f;
        tensors.at(prefix + "k_proj.input_scale").As<float>()[0] = 0.75f;
        tensors.at(prefix + "v_proj.input_scale").As<float>()[0] = 0.5f;
      });
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  const auto hf = HfReader::Open(folder_ / "hf");
  ASSERT_TRUE(hf.ok()) << hf.status().message();
  const auto loaded = LoadWeights(**hf, *backend, 8);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->layers[1].attention.qkv.input_scale, 0.75f);
  ASSERT_TRUE(Convert(Options(2)).ok());
  const auto checkpoint = OpenCheckpoint(folder_ / "out");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  for (const WeightRole role : {WeightRole::kQuery, WeightRole::kKey, WeightRole::kValue}) {
    const auto scale = (*checkpoint)->Get({role, 1, WeightPart::kInputScale});
    ASSERT_TRUE(scale.ok()) << scale.status().message();
    EXPECT_EQ(*scale->As<float>(), 0.75f);
  }
}

// Writes a file of tensors again, with one of them changed or replaced.
void ChangeTensor(const fs::path& path, const std::string& name,
                  const std::function<void(Tensor&)>& change) {
  const auto file = SafetensorsFile::Open(path).value();
  std::vector<Buffer> memory;
  std::vector<NamedTensor> tensors;
  for (const auto& [other, tensor] : file->tensors()) {
    const auto bytes = static_cast<size_t>(tensor.NumBytes());
    memory.push_back(Buffer::OnHost(bytes));
    std::memcpy(memory.back().data(), tensor.data, bytes);
    tensors.push_back({other, memory.back().View(tensor.dtype, tensor.shape)});
    if (other == name) change(tensors.back().tensor);
  }
  ASSERT_TRUE(WriteSafetensors(path, tensors).ok());
}

// More ranks than key-value heads.
TEST_F(ConvertTest, HeadsThatRanksRepeatMustBeTheSame) {
  HfFolder{}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(8)).ok());  // of 4 heads
  const std::string name = "transformer.layers.1.attention.qkv.weight";
  const auto source = OpenCheckpoint(folder_ / "out").value();
  EXPECT_TRUE(source->Get({WeightRole::kKey, 1}).ok());
  ChangeTensor(folder_ / "out" / "rank5.safetensors", name, [](Tensor& qkv) {
    const int64_t rows_of_a_head = qkv.dim(0) / 3;
    *qkv.RowRange(rows_of_a_head, 1).As<uint16_t>() ^= 1;  // of keys, after those of queries
  });
  const auto changed = OpenCheckpoint(folder_ / "out").value();
  EXPECT_TRUE(changed->Get({WeightRole::kQuery, 1}).ok());
  EXPECT_TRUE(changed->Get({WeightRole::kValue, 1}).ok());
  const auto keys = changed->Get({WeightRole::kKey, 1});
  ASSERT_FALSE(keys.ok());
  EXPECT_THAT(keys.status().message(), HasSubstr("rank5.safetensors: tensor \"" + name +
                                                 "\" differs from that of rank4.safetensors"));
}

// Of weights that are split by columns: a weight is its element times its rank's scale.
TEST_F(ConvertTest, RanksMayHaveFp8ScalesOfTheirOwn) {
  const std::string down = "transformer.layers.1.mlp.proj.";
  for (const bool one_scale : {false, true}) {
    for (const char* scheme : {kStaticFp8, kDynamicFp8}) {
      HfFolder{.extra_config = scheme}.Write(folder_ / "hf");
      ASSERT_TRUE(Convert(Options(2)).ok());
      const WeightId scale_id{WeightRole::kDown, 1, WeightPart::kScale};
      const auto hf = HfReader::Open(folder_ / "hf").value();
      const Tensor before = hf->Get(scale_id).value();
      const fs::path rank1 = folder_ / "out" / "rank1.safetensors";
      ChangeTensor(rank1, down + "weights_scaling_factor", [&](Tensor& scales) {
        for (int64_t i = 0; i < scales.NumElements(); ++i) scales.As<float>()[i] *= 2;
        if (one_scale) scales.shape = {1};
      });
      if (scheme == kStaticFp8) {
        ChangeTensor(rank1, down + "activation_scaling_factor",
                     [](Tensor& scale) { *scale.As<float>() *= 4; });
      }
      const auto source = OpenCheckpoint(folder_ / "out");
      ASSERT_TRUE(source.ok()) << source.status().message();
      EXPECT_EQ(SchemeOf((*source)->spec(), WeightRole::kDown, 1).block_columns, 64);
      EXPECT_EQ(SchemeOf((*source)->spec(), WeightRole::kDown, 0).block_columns, 0);
      const auto scales = (*source)->Get(scale_id);
      ASSERT_TRUE(scales.ok()) << scales.status().message();
      ASSERT_EQ(scales->shape, (Shape{64, 2}));
      for (int64_t row = 0; row < 64; ++row) {
        EXPECT_EQ(scales->As<float>()[2 * row], before.As<float>()[row]);
        EXPECT_EQ(scales->As<float>()[2 * row + 1], 2 * before.As<float>()[row]);
      }
      if (scheme == kStaticFp8) {
        // The largest: it clamps no rank's inputs.
        const WeightId inputs{WeightRole::kDown, 1, WeightPart::kInputScale};
        EXPECT_EQ(*(*source)->Get(inputs)->As<float>(), 4 * *hf->Get(inputs)->As<float>());
      }
      const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
      EXPECT_TRUE(LoadWeights(**source, *backend, 8).ok());
    }
  }
}

TEST_F(ConvertTest, CacheScalesGoWithTheirHeads) {
  std::vector<float> numbers;
  for (int i = 0; i < 16; ++i) numbers.push_back(0.25f + 0.5f * static_cast<float>(i));
  HfFolder{}.Write(folder_ / "hf", [&](std::map<std::string, Tensor>& tensors) {
    for (size_t i = 0; i < 4; ++i) {
      const std::string name = "model.layers." + std::to_string(i / 2) + ".self_attn.";
      tensors[name + (i % 2 == 0 ? "k_scale" : "v_scale")] = {
          &numbers[4 * i], DType::kF32, {4}, {}};
    }
  });
  const auto hf = HfReader::Open(folder_ / "hf");
  ASSERT_TRUE(hf.ok()) << hf.status().message();
  for (const int64_t ranks : {1, 2, 8}) {  // of 4 heads, which 8 ranks repeat
    ASSERT_TRUE(Convert(Options(ranks)).ok());
    const auto checkpoint = OpenCheckpoint(folder_ / "out");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ((*hf)->spec(), (*checkpoint)->spec());
    EXPECT_EQ((*checkpoint)->spec().cache_scales, DType::kF8E4M3);
    ExpectSameWeights(**hf, **checkpoint);
  }
}

// As TensorRT-LLM's convert_checkpoint.py writes them with --int8_kv_cache: one for a layer.
TEST_F(ConvertTest, ACacheScaleOfALayerIsThatOfItsHeads) {
  std::vector<float> numbers(16, 0.5f);
  HfFolder{}.Write(folder_ / "hf", [&](std::map<std::string, Tensor>& tensors) {
    for (size_t i = 0; i < 4; ++i) {
      const std::string name = "model.layers." + std::to_string(i / 2) + ".self_attn.";
      tensors[name + (i % 2 == 0 ? "k_scale" : "v_scale")] = {
          &numbers[4 * i], DType::kF32, {4}, {}};
    }
  });
  ASSERT_TRUE(Convert(Options(2)).ok());
  std::vector<float> scales = {0.03f, 0.07f};  // of the layers
  for (const char* rank : {"rank0.safetensors", "rank1.safetensors"}) {
    const fs::path path = folder_ / "out" / rank;
    const auto file = SafetensorsFile::Open(path).value();
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : file->tensors()) {
      const bool scale = name.ends_with("kv_cache_scaling_factor");
      float& value = scales[name.find("layers.1.") == std::string::npos ? 0 : 1];
      tensors.push_back({name, scale ? Tensor{&value, DType::kF32, {1}, {}} : tensor});
    }
    ASSERT_TRUE(WriteSafetensors(folder_ / "changed", tensors).ok());
    fs::rename(folder_ / "changed", path);
  }
  const fs::path config = folder_ / "out" / "config.json";
  std::string text = *ReadTextFile(config);
  const size_t at = text.find("\"kv_cache_quant_algo\": \"FP8\"");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 28, "\"kv_cache_quant_algo\": \"INT8\"");
  WriteText(config, text);
  const auto checkpoint = OpenCheckpoint(folder_ / "out");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->spec().cache_scales, DType::kI8);
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (const WeightRole role : {WeightRole::kKey, WeightRole::kValue}) {
      const Tensor found = (*checkpoint)->Get({role, layer, WeightPart::kCacheScale}).value();
      ASSERT_EQ(found.shape, (Shape{4}));
      for (int head = 0; head < 4; ++head) {
        EXPECT_EQ(found.As<float>()[head], scales[static_cast<size_t>(layer)]);
      }
    }
  }
  text.replace(text.find("\"INT8\""), 6, "\"NVFP4\"");
  WriteText(config, text);
  const auto refused = OpenCheckpoint(folder_ / "out");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("kv_cache_quant_algo"), std::string::npos);
}

TEST_F(ConvertTest, ChecksTheScalesOfACheckpoint) {
  HfFolder{.extra_config = kStaticFp8}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(1)).ok());
  const fs::path rank = folder_ / "out" / "rank0.safetensors";
  const std::string name = "transformer.layers.0.mlp.proj.weights_scaling_factor";
  std::vector<float> scales(64, 0.5f);
  // Writes the file again with `scales`, or without.
  const auto rewrite = [&](bool with_scales) {
    const auto file = SafetensorsFile::Open(rank).value();
    std::vector<NamedTensor> tensors;
    for (const auto& [stored, tensor] : file->tensors()) {
      if (stored != name) {
        tensors.push_back({stored, tensor});
      } else if (with_scales) {
        tensors.push_back({name, {scales.data(), DType::kF32, tensor.shape, {}}});
      }
    }
    ASSERT_TRUE(WriteSafetensors(folder_ / "changed", tensors).ok());
    fs::rename(folder_ / "changed", rank);
  };
  scales[7] = -1.0f;
  rewrite(true);
  const auto checkpoint = OpenCheckpoint(folder_ / "out");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto scale = (*checkpoint)->Get({WeightRole::kDown, 0, WeightPart::kScale});
  ASSERT_FALSE(scale.ok());
  EXPECT_NE(scale.status().message().find(name), std::string::npos) << scale.status().message();
  EXPECT_NE(scale.status().message().find("positive"), std::string::npos);
  rewrite(false);
  ExpectRefused({"rank0.safetensors", name, "missing"});
}

TEST_F(ConvertTest, WritesTheNamesAndShapesOfTheLayout) {
  HfFolder{}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(2)).ok());
  const auto rank = SafetensorsFile::Open(folder_ / "out" / "rank1.safetensors");
  ASSERT_TRUE(rank.ok());
  const auto& tensors = (*rank)->tensors();
  EXPECT_EQ(tensors.at("transformer.vocab_embedding.weight").shape, (Shape{96, 64}));
  EXPECT_EQ(tensors.at("transformer.layers.1.attention.qkv.weight").shape, (Shape{64, 64}));
  EXPECT_EQ(tensors.at("transformer.layers.0.attention.dense.weight").shape, (Shape{64, 32}));
  EXPECT_EQ(tensors.at("transformer.layers.0.mlp.fc.weight").shape, (Shape{64, 64}));
  EXPECT_EQ(tensors.at("transformer.layers.0.mlp.gate.weight").shape, (Shape{64, 64}));
  EXPECT_EQ(tensors.at("transformer.layers.0.mlp.proj.weight").shape, (Shape{64, 64}));
  EXPECT_EQ(tensors.at("transformer.layers.0.input_layernorm.weight").shape, (Shape{64}));
  EXPECT_EQ(tensors.at("transformer.layers.1.post_layernorm.weight").shape, (Shape{64}));
  EXPECT_EQ(tensors.at("transformer.ln_f.weight").shape, (Shape{64}));
  EXPECT_EQ(tensors.at("lm_head.weight").shape, (Shape{48, 64}));
  EXPECT_EQ(tensors.size(), 2u * 7u + 3u);
}

// As TensorRT-LLM's own converters write them.
TEST_F(ConvertTest, FamiliesWithTheLayersOfALlamaHaveTheNamesOfTensorRtLlm) {
  struct Case {
    const char* fixture;
    const char* architecture;
    std::vector<std::string> has, has_not;
  };
  for (const Case& c :
       {Case{"qwen2", "Qwen2ForCausalLM", {"qkv.bias"}, {"dense.bias", "q_layernorm.weight"}},
        Case{"qwen3",
             "Qwen3ForCausalLM",
             {"q_layernorm.weight", "k_layernorm.weight"},
             {"qkv.bias"}},
        Case{"internlm_7b", "InternLMForCausalLM", {"qkv.bias", "dense.bias"}, {}},
        Case{"internlm2", "InternLM2ForCausalLM", {"qkv.weight"}, {"qkv.bias", "dense.bias"}}}) {
    SCOPED_TRACE(c.fixture);
    ConvertOptions options = Options(1);
    options.model_dir = FixtureOf(c.fixture);
    options.output_dir = folder_ / c.fixture;
    ASSERT_TRUE(Convert(options).ok());
    const std::string config = *ReadTextFile(options.output_dir / "config.json");
    EXPECT_THAT(config, HasSubstr(std::string("\"architecture\": \"") + c.architecture + '"'));
    EXPECT_THAT(config, Not(HasSubstr("tandem_model")));
    const auto file = SafetensorsFile::Open(options.output_dir / "rank0.safetensors").value();
    const std::string layer = "transformer.layers.1.attention.";
    for (const std::string& name : c.has)
      EXPECT_TRUE(file->tensors().contains(layer + name)) << name;
    for (const std::string& name : c.has_not) {
      EXPECT_FALSE(file->tensors().contains(layer + name)) << name;
    }
    const auto checkpoint = OpenCheckpoint(options.output_dir).value();
    const auto folder = HfReader::Open(options.model_dir, checkpoint->spec().dtype).value();
    EXPECT_EQ(checkpoint->spec().layers, folder->spec().layers);
    ExpectSameWeights(*folder, *checkpoint);
  }
}

TEST_F(ConvertTest, ConvertsTheTypeAskedFor) {
  HfFolder{.extra_config = ", \"dtype\": \"float32\"", .stored = DType::kF32}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(1)).ok());
  EXPECT_EQ((*OpenCheckpoint(folder_ / "out"))->spec().dtype, DType::kF16);  // auto
  ConvertOptions options = Options(1);
  options.dtype = "float32";
  ASSERT_TRUE(Convert(options).ok());
  EXPECT_EQ((*OpenCheckpoint(folder_ / "out"))->spec().dtype, DType::kF32);
  options.dtype = "int8";
  EXPECT_FALSE(Convert(options).ok());
}

TEST_F(ConvertTest, TokenizerAndDefaultsTravelAlong) {
  HfFolder{}.Write(folder_ / "hf");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja", "README.md"}) {
    WriteText(folder_ / "hf" / name, name);
  }
  ASSERT_TRUE(Convert(Options(1)).ok());
  EXPECT_EQ(*ReadTextFile(folder_ / "out" / "tokenizer.json"), "tokenizer.json");
  EXPECT_TRUE(fs::exists(folder_ / "out" / "chat_template.jinja"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "README.md"));
}

TEST_F(ConvertTest, EveryFormOfTokenizerTravelsAlong) {
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model", "ice_text.model",
                           "qwen.tiktoken", "vocab.json"}) {
    const fs::path model = folder_ / name;
    HfFolder{}.Write(model);
    EXPECT_FALSE(HasTokenizer(model));
    WriteText(model / name, name);
    WriteText(model / "merges.txt", "its merges");
    EXPECT_TRUE(HasTokenizer(model)) << name;
    ConvertOptions options = Options(1);
    options.model_dir = model;
    ASSERT_TRUE(Convert(options).ok());
    EXPECT_TRUE(HasTokenizer(folder_ / "out")) << name;
    EXPECT_EQ(*ReadTextFile(folder_ / "out" / name), name);
    EXPECT_EQ(*ReadTextFile(folder_ / "out" / "merges.txt"), "its merges");
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(ConvertTest, ReplacesAnOlderResultAndKeepsForeignFiles) {
  HfFolder{}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(4)).ok());
  WriteText(folder_ / "out" / "runtime.json", "mine");
  ASSERT_TRUE(Convert(Options(2)).ok());
  EXPECT_TRUE(OpenCheckpoint(folder_ / "out").ok());
  EXPECT_FALSE(fs::exists(folder_ / "out" / "rank3.safetensors"));
  EXPECT_EQ(*ReadTextFile(folder_ / "out" / "runtime.json"), "mine");
  EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
}

TEST_F(ConvertTest, LeavesAFolderOfAnotherKindAlone) {
  HfFolder{}.Write(folder_ / "hf");
  fs::create_directories(folder_ / "out");
  WriteText(folder_ / "out" / "thesis.tex", "years of work");
  const auto report = Convert(Options(1));
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("something else"), std::string::npos);
  EXPECT_EQ(*ReadTextFile(folder_ / "out" / "thesis.tex"), "years of work");
}

TEST_F(ConvertTest, AFailureLeavesTheOldResultAndNoTrace) {
  HfFolder{}.Write(folder_ / "hf");
  ASSERT_TRUE(Convert(Options(1)).ok());
  ConvertOptions options = Options(1);
  options.tp_size = 3;
  const auto uneven = Convert(options);
  ASSERT_FALSE(uneven.ok());
  EXPECT_NE(uneven.status().message().find("tp_size is 3"), std::string::npos);
  fs::remove(folder_ / "hf" / "model.safetensors");
  EXPECT_FALSE(Convert(Options(1)).ok());
  EXPECT_TRUE(OpenCheckpoint(folder_ / "out").ok());
  EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
}

TEST_F(ConvertTest, ClearsWhatAnInterruptedRunLeft) {
  HfFolder{}.Write(folder_ / "hf");
  fs::create_directories(folder_ / "out.tmp");
  WriteText(folder_ / "out.tmp" / "rank7.safetensors", "half");
  ASSERT_TRUE(Convert(Options(1)).ok());
  EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "rank7.safetensors"));
}

TEST_F(ConvertTest, NamesWhatIsWrongWithACheckpoint) {
  HfFolder{}.Write(folder_ / "hf");
  const auto again = [&] { ASSERT_TRUE(Convert(Options(2)).ok()); };
  again();
  fs::remove(folder_ / "out" / "rank1.safetensors");
  ExpectRefused({"rank1.safetensors"});
  again();
  fs::resize_file(folder_ / "out" / "rank0.safetensors", 5000);
  ExpectRefused({"rank0.safetensors", "truncated"});
  again();
  EditConfig("\"tp_size\": 2", "\"tp_size\": 1");
  ExpectRefused({"config.json", "world_size"});
  again();
  EditConfig("\"intermediate_size\": 128", "\"intermediate_size\": 256");
  ExpectRefused({"rank0.safetensors", "mlp.fc.weight", "[64, 64]", "[128, 64]"});
  again();
  EditConfig("\"quant_algo\": null", "\"quant_algo\": \"NVFP4\"");
  ExpectRefused({"config.json", "quantization.quant_algo", "NVFP4", "supported are FP8"});
  again();
  EditConfig("\"quant_algo\": null", "\"quant_algo\": \"FP8\"");
  ExpectRefused({"rank0.safetensors", "attention.qkv.weight", "BF16", "F8_E4M3"});
  again();
  EditConfig("\"pp_size\": 1", "\"pp_size\": 2");
  ExpectRefused({"mapping.world_size", "tp_size * pp_size", "2 and 4"});
  again();
  EditConfig("\"cp_size\": 1", "\"cp_size\": 2");
  ExpectRefused({"mapping.cp_size"});
  again();
  EditConfig("\"cp_size\": 1", "\"cp_size\": 1, \"pp_partition\": [1, 1]");
  ExpectRefused({"mapping.pp_partition"});
  again();
  EditConfig("\"LlamaForCausalLM\"", "\"GPTForCausalLM\"");
  ExpectRefused({"GPTForCausalLM", "LlamaForCausalLM"});
  again();
  EditConfig("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"");
  ExpectRefused({"hidden_act"});
  again();
  EditConfig("\"rotary_scaling\": null", "\"rotary_scaling\": {\"type\": \"mrope\"}");
  ExpectRefused({"rotary_scaling.type", "mrope"});
}

}  // namespace
}  // namespace tandem
