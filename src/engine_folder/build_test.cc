#include "engine_folder/build.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/hf_folder.h"
#include "engine_folder/engine_folder.h"
#include "engine_folder/engine_layout.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Reads every weight, as loading does.
Status ReadAll(WeightSource& source) {
  for (const WeightId& id : StoredWeights(source.spec())) {
    const auto tensor = source.Get(id);
    if (!tensor.ok()) return tensor.status();
  }
  return source.Finish();
}

Status OpenAndRead(const fs::path& folder) {
  TANDEM_ASSIGN_OR_RETURN(const EngineFolder engine, OpenEngine(folder));
  return ReadAll(*engine.source);
}

class BuildTest : public FolderTest {
 protected:
  // hf → checkpoint with `tp_size` ranks → engine, in the folders of these names.
  void BuildEngine(int64_t tp_size,
                   const std::string& extra_config = ", \"attention_bias\": true") const {
    HfFolder{.extra_config = extra_config}.Write(folder_ / "hf");
    WriteText(folder_ / "hf" / "tokenizer.json", "{}");
    const auto converted = Convert(
        {.model_dir = folder_ / "hf", .output_dir = folder_ / "checkpoint", .tp_size = tp_size});
    ASSERT_TRUE(converted.ok()) << converted.status().message();
    const auto built = Build(Options());
    ASSERT_TRUE(built.ok()) << built.status().message();
    EXPECT_EQ(built->sharding.tp_size, tp_size);
  }
  BuildOptions Options() const {
    return {.checkpoint_dir = folder_ / "checkpoint", .output_dir = folder_ / "engine"};
  }
  // The first rank's file with `change` applied to its bytes must be refused; returns the message.
  std::string Refusal(const std::string& bytes) const {
    WriteText(folder_ / "engine" / "rank0.engine", bytes);
    const Status status = OpenAndRead(folder_ / "engine");
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("rank0.engine"), std::string::npos) << status.message();
    return status.message();
  }
};

TEST_F(BuildTest, AnEngineHoldsTheWeightsOfTheModelItCameFrom) {
  const std::string fp8 =
      R"(, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"})";
  for (const auto& [tp_size, extra_config] :
       {std::pair<int64_t, std::string>{1, ", \"attention_bias\": true"},
        {2, ", \"attention_bias\": true"},
        {8, ", \"attention_bias\": true"},
        {1, fp8},
        {2, fp8}}) {
    BuildEngine(tp_size, extra_config);
    const auto engine = OpenEngine(folder_ / "engine");
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const auto hf = HfReader::Open(folder_ / "hf");
    ASSERT_TRUE(hf.ok());
    EXPECT_EQ(engine->source->spec(), (*hf)->spec());
    for (const WeightId& id : StoredWeights((*hf)->spec())) {
      const auto a = (*hf)->Get(id);
      const auto b = engine->source->Get(id);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_EQ(a->shape, b->shape);
      EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0);
    }
    EXPECT_TRUE(fs::exists(folder_ / "engine" / "tokenizer.json"));
  }
}

TEST_F(BuildTest, LimitsAreSettledWrittenAndReadBack) {
  BuildEngine(1);
  BuildOptions options = Options();
  options.limits = {.max_batch_size = 8,
                    .max_input_len = 9000,
                    .max_seq_len = 512,
                    .max_num_tokens = 1024,
                    .max_draft_len = 10,
                    .kv_cache_dtype = DType::kF8E4M3};
  options.recorded = {{"gemm_plugin", "auto"}};
  options.speculative_decoding_mode = "draft_tokens_external";
  ASSERT_TRUE(Build(options).ok());
  const auto engine = OpenEngine(folder_ / "engine");
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(engine->limits.max_batch_size, 8);
  EXPECT_EQ(engine->limits.max_seq_len, 512);
  EXPECT_EQ(engine->limits.max_input_len, 512);  // at most the sequence's length
  EXPECT_EQ(engine->limits.max_draft_len, 10);
  EXPECT_EQ(engine->limits.kv_cache_dtype, DType::kF8E4M3);
  const std::string config = *ReadTextFile(folder_ / "engine" / "config.json");
  for (const char* part : {"\"version\": \"", "\"pretrained_config\": {", "\"build_config\": {",
                           "\"gemm_plugin\": \"auto\"", "draft_tokens_external"}) {
    EXPECT_NE(config.find(part), std::string::npos) << part << config;
  }
}

TEST_F(BuildTest, ScalesForFp8MakeTheCacheOfAnEngineFp8) {
  const std::pair<const char*, std::optional<DType>> cases[] = {{"float", DType::kF8E4M3},
                                                                {"int", std::nullopt}};
  for (const auto& [type, expected] : cases) {
    SCOPED_TRACE(type);
    const std::string config =
        R"(, "quantization_config": {"quant_method": "compressed-tensors", "format": "dense",
             "config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "symmetric": true, "type": ")" +
        std::string(type) + R"("}})";
    float scale = 0.5f;
    HfFolder{.extra_config = config}.Write(folder_ / "scaled", [&](auto& tensors) {
      for (const char* name : {"0.self_attn.k_scale", "0.self_attn.v_scale", "1.self_attn.k_scale",
                               "1.self_attn.v_scale"}) {
        tensors[std::string("model.layers.") + name] = {&scale, DType::kF32, {1}, {}};
      }
    });
    BuildOptions options;
    options.checkpoint_dir = folder_ / "scaled";
    options.output_dir = folder_ / (std::string("engine_") + type);
    ASSERT_TRUE(Build(options).ok());
    EXPECT_EQ(OpenEngine(options.output_dir)->limits.kv_cache_dtype, expected);
    fs::remove_all(folder_ / "scaled");
  }
}

TEST_F(BuildTest, RefusesLimitsThatCannotBeNamingThem) {
  const ModelSpec spec = *SpecFromHfConfig(HfFolder{}.Config());
  EXPECT_EQ(SettleLimits({}, spec)->max_seq_len, 2048);
  // The old build lines name lengths that smaller models do not have.
  EXPECT_EQ(SettleLimits({.max_seq_len = 4800}, spec)->max_seq_len, 2048);
  EXPECT_EQ(SettleLimits({}, spec)->kv_cache_dtype, std::nullopt);
  const auto refused = [&](const BuildLimits& limits, const char* name) {
    const auto settled = SettleLimits(limits, spec);
    ASSERT_FALSE(settled.ok());
    EXPECT_NE(settled.status().message().find(name), std::string::npos);
  };
  refused({.max_batch_size = 0}, "max_batch_size");
  refused({.max_input_len = -1}, "max_input_len");
  refused({.max_num_tokens = 0}, "max_num_tokens");
  refused({.max_beam_width = 4}, "max_beam_width");
  refused({.max_draft_len = -2}, "max_draft_len");
  refused({.kv_cache_dtype = DType::kBF16}, "kv_cache_dtype");
  refused({.kv_cache_dtype = DType::kI8}, "tandem quantize --kv_cache_dtype int8");
  refused({.max_seq_len = int64_t{1} << 40}, "max_seq_len");
}

TEST_F(BuildTest, EveryFlippedByteIsRefused) {
  BuildEngine(1);
  const std::string good = *ReadTextFile(folder_ / "engine" / "rank0.engine");
  std::mt19937 random(3);
  const auto flip = [&](size_t at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    Refusal(bytes);
  };
  for (int i = 0; i < 400; ++i) flip(random() % good.size());
  for (size_t at = 0; at < 64; ++at) flip(at);
  for (size_t at = 1; at <= 64; ++at) flip(good.size() - at);
}

TEST_F(BuildTest, EveryTruncationIsRefused) {
  BuildEngine(1);
  const std::string good = *ReadTextFile(folder_ / "engine" / "rank0.engine");
  for (size_t length = 0; length < good.size(); length += 4096) Refusal(good.substr(0, length));
  Refusal(good.substr(0, good.size() - 1));
  Refusal(good + "x");
}

TEST_F(BuildTest, NamesTheDamagedSection) {
  BuildEngine(1);
  const std::string good = *ReadTextFile(folder_ / "engine" / "rank0.engine");
  const auto engine = OpenEngine(folder_ / "engine");
  ASSERT_TRUE(engine.ok());
  const auto tensor = engine->source->Get({WeightRole::kDown, 1});
  ASSERT_TRUE(tensor.ok());
  // Offset of that tensor's first bytes in the file.
  const std::string_view start(static_cast<const char*>(tensor->data), 64);
  std::string bytes = good;
  bytes[good.find(start) + 10] ^= 0x10;
  EXPECT_NE(Refusal(bytes).find("section \"transformer.layers.1.mlp.proj.weight\" is damaged"),
            std::string::npos);
  bytes = good;
  bytes[good.find("\"sections\"")] ^= 1;
  EXPECT_NE(Refusal(bytes).find("table of sections is damaged"), std::string::npos);
  bytes = good;
  bytes[8] = 9;
  EXPECT_NE(Refusal(bytes).find("format 9"), std::string::npos);
  EXPECT_NE(Refusal("ptrt" + std::string(1000, '\0')).find("TensorRT"), std::string::npos);
}

// The same file with another table and a correct checksum: what a hostile author could write.
std::string WithTable(const std::string& good, const std::string& table) {
  using namespace engine_layout;
  const auto* trailer = reinterpret_cast<const std::byte*>(good.data()) + good.size() - 64;
  const uint64_t offset = LoadLittleEndian<uint64_t>(trailer);
  std::string end = LittleEndian64(offset) + LittleEndian64(table.size()) +
                    Checksum(std::as_bytes(std::span(table)));
  end.resize(kTrailerBytes - kEndMagic.size(), '\0');
  return good.substr(0, offset) + table + end + std::string(kEndMagic);
}

TEST_F(BuildTest, RefusesHostileTables) {
  BuildEngine(1);
  const std::string good = *ReadTextFile(folder_ / "engine" / "rank0.engine");
  const auto section = [](const std::string& entry) {
    return "{\"rank\":0,\"world_size\":1,\"sections\":{\"a\":" + entry + "}}";
  };
  const std::string tail = ",\"xxh3_128\":\"\"}";
  const std::string tables[] = {
      "",
      "[]",
      "{}",
      "{\"rank\":1,\"world_size\":2,\"sections\":{}}",
      "{\"rank\":0,\"world_size\":1}",
      "{\"rank\":0,\"world_size\":1,\"sections\":[]}",
      "{\"rank\":0,\"world_size\":1,\"sections\":{}}",
      section("7"),
      section("{}"),
      section(R"({"dtype":"f99","shape":[1],"offset":64,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[-1],"offset":64,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[1,1,1,1,1],"offset":64,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[9223372036854775807,9],"offset":64,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[4294967296,4294967296],"offset":64,"bytes":0)" + tail),
      section(R"({"dtype":"uint8","shape":[1],"offset":65,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[1],"offset":9223372036854775744,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[1],"offset":-64,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[1],"offset":640000,"bytes":1)" + tail),
      section(R"({"dtype":"uint8","shape":[1],"offset":64,"bytes":1)" + tail),
  };
  for (const std::string& table : tables) Refusal(WithTable(good, table));
}

TEST_F(BuildTest, RefusesARankOfAnotherEngine) {
  BuildEngine(2);
  fs::copy_file(folder_ / "engine" / "rank1.engine", folder_ / "engine" / "rank0.engine",
                fs::copy_options::overwrite_existing);
  const Status status = OpenAndRead(folder_ / "engine");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("rank 1 of 2, not 0 of 2"), std::string::npos);
}

TEST_F(BuildTest, ChecksCopiesThatNobodyReads) {
  BuildEngine(2);
  // The second rank's embedding repeats the first one's and is never read.
  const auto engine = OpenEngine(folder_ / "engine");
  ASSERT_TRUE(engine.ok());
  const fs::path path = folder_ / "engine" / "rank1.engine";
  std::string bytes = *ReadTextFile(path);
  bytes[100] ^= 1;  // the embedding is the first section
  WriteText(path, bytes);
  const Status status = OpenAndRead(folder_ / "engine");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("rank1.engine: section \"transformer.vocab_embedding.weight\""),
            std::string::npos);
}

TEST_F(BuildTest, RefusesToBuildFromAnEngine) {
  BuildEngine(1);
  BuildOptions options = Options();
  options.checkpoint_dir = folder_ / "engine";
  options.output_dir = folder_ / "other";
  const auto report = Build(options);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("engine already"), std::string::npos);
}

}  // namespace
}  // namespace tandem
