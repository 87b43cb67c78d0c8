// Folders that other tools quantized (testing/quantized_folder.h): what is read is compared with
// what was written, weight by weight, and in logits with the same model in fp32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/convert.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/stored/stored_tensor.h"
#include "checkpoint/testing/quantized_folder.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/relative_error.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using quantized::Format;
using quantized::Formats;
using quantized::kLeftLayer;
using quantized::kLeftRole;
using quantized::Matrix;
using quantized::NameOf;

class LayoutsTest : public FolderTest, public ::testing::WithParamInterface<Format> {
 protected:
  // What a product makes of a stored weight, in fp32.
  static std::vector<float> Widened(WeightSource& source, WeightRole role, int64_t layer) {
    ops::LinearPart part;
    part.scheme = SchemeOf(source.spec(), role, layer);
    const auto get = [&](WeightPart kind) {
      const WeightId id{role, layer, kind};
      const auto tensor = source.Get(id);
      EXPECT_TRUE(tensor.ok()) << tensor.status().message();
      EXPECT_EQ(tensor->shape, WeightShape(source.spec(), id));
      EXPECT_EQ(tensor->dtype, WeightDType(source.spec(), id));
      return *tensor;
    };
    for (const WeightPart kind : WeightParts(source.spec(), role, layer)) {
      if (kind == WeightPart::kWeight) part.weight = get(kind);
      if (kind == WeightPart::kScale) part.scale = get(kind);
      if (kind == WeightPart::kZero) part.zero = get(kind);
      if (kind == WeightPart::kInputFactors) part.input_factors = get(kind);
      if (kind == WeightPart::kInputOrder) part.input_order = get(kind);
    }
    std::vector<float> values(static_cast<size_t>(part.rows() * part.cols()));
    for (int64_t row = 0; row < part.rows(); ++row) {
      ops::WidenRow(part, row, values.data() + row * part.cols());
    }
    source.Release();
    return values;
  }

  static std::vector<std::vector<float>> Logits(WeightSource& source) {
    constexpr int32_t kTokens[] = {1, 17, 5, 90, 33, 33, 2, 64, 8, 71, 12};
    const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
    const auto weights = LoadWeights(source, *backend, 64, {}, {.layers = QuantScheme{}});
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    return DecoderTestDriver(*weights, *backend, 64).Feed(kTokens);
  }

  std::unique_ptr<HfReader> Open(const char* folder = "quantized") {
    auto reader = HfReader::Open(folder_ / folder, DType::kF32);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    return reader.ok() ? *std::move(reader) : nullptr;
  }

  std::map<std::string, quantized::Matrix> matrices_;
};

TEST_P(LayoutsTest, GivesWhatWasWritten) {
  matrices_ = quantized::WriteBoth(folder_, GetParam());
  const auto reader = Open();
  ASSERT_NE(reader, nullptr);
  const ModelSpec& spec = reader->spec();
  EXPECT_EQ(DescribeScheme(spec.quantization), GetParam().described);
  EXPECT_TRUE(SchemeOf(spec, kLeftRole, kLeftLayer).is_plain());
  EXPECT_EQ(!SchemeOf(spec, WeightRole::kHead, 0).is_plain(), GetParam().head);
  int compared = 0;
  for (const WeightId& id : StoredWeights(spec)) {
    const auto written = matrices_.find(NameOf(id.role, id.layer));
    if (id.part != WeightPart::kWeight || written == matrices_.end()) continue;
    const std::vector<float> values = Widened(*reader, id.role, id.layer);
    const Matrix& m = written->second;
    ASSERT_EQ(values.size(), m.codes.size());
    for (int row = 0; row < m.rows; ++row) {
      for (int col = 0; col < m.cols; ++col) {
        ASSERT_EQ(values[m.At(row, col)], m.Value(row, col))
            << written->first << " " << row << " " << col;
      }
    }
    if (m.input_scale > 0) {
      EXPECT_EQ(*(*reader->Get({id.role, id.layer, WeightPart::kInputScale})).As<float>(),
                m.input_scale);
    }
    ++compared;
  }
  EXPECT_EQ(compared, GetParam().head ? 14 : 13);
}

TEST_P(LayoutsTest, ComputesLikeTheSameModelInFp32) {
  matrices_ = quantized::WriteBoth(folder_, GetParam());
  const auto reader = Open();
  const auto plain = Open("plain");
  ASSERT_TRUE(reader != nullptr && plain != nullptr);
  EXPECT_LE(RelativeError(Logits(*reader), Logits(*plain)), 1e-3);
}

class FaultyLayoutsTest : public FolderTest {
 protected:
  using Tensors = std::map<std::string, Tensor>;

  Format Named(const std::string& name) const {
    return *std::ranges::find(formats_, name, &Format::name);
  }
  Status Refusal(const std::string& format, const std::function<void(Tensors&)>& change) const {
    quantized::WriteBoth(folder_, Named(format), change);
    const auto reader = HfReader::Open(folder_ / "quantized");
    EXPECT_FALSE(reader.ok()) << format;
    return reader.status();
  }

  const std::vector<Format> formats_ = Formats();
};

TEST_F(FaultyLayoutsTest, AreRefusedNamingFileAndTensor) {
  const std::string up = "model.layers.0.mlp.up_proj.";
  struct Case {
    const char* format;
    std::function<void(Tensors&)> change;
    std::vector<std::string> named;
  };
  const auto erase = [&](const std::string& suffix) {
    return [=](Tensors& t) { t.erase(up + suffix); };
  };
  const auto shape = [&](const std::string& suffix, const Shape& wrong) {
    return [=](Tensors& t) { t.at(up + suffix).shape = wrong; };
  };
  const auto dtype = [&](const std::string& suffix, DType wrong) {
    return [=](Tensors& t) { t.at(up + suffix).dtype = wrong; };
  };
  const auto number = [&](const std::string& suffix, int64_t at, int32_t value) {
    return [=](Tensors& t) { t.at(up + suffix).As<int32_t>()[at] = value; };
  };
  const auto half = [&](const std::string& suffix, uint16_t value) {
    return [=](Tensors& t) { t.at(up + suffix).As<Float16>()[3] = {value}; };
  };
  const Case cases[] = {
      {"gptq", erase("qweight"), {up + "qweight", "missing"}},
      {"gptq", erase("qzeros"), {up + "qzeros", "missing"}},
      {"gptq", erase("scales"), {up + "scales", "missing"}},
      {"gptq_act_order", erase("g_idx"), {up + "g_idx", "missing"}},
      {"gptq", shape("qweight", {128, 8}), {up + "qweight", "[128, 8]", "[8, 128]"}},
      {"gptq", shape("scales", {256}), {up + "scales", "[256]", "[2, 128]"}},
      {"gptq", half("scales", 0x7e00), {up + "scales", "nan"}},
      {"gptq", half("scales", 0xb800), {up + "scales", "-0.5"}},
      {"gptq", number("g_idx", 5, 2), {up + "g_idx", "column 5 into group 2", "2 groups"}},
      {"gptq", number("g_idx", 5, -1), {up + "g_idx", "group -1"}},
      {"gptq", number("g_idx", 5, 1), {up + "g_idx", "group 1 has more than its 32 columns"}},
      {"gptq",
       [&](Tensors& t) { t.at(up + "bias").As<Float16>()[7] = {0x3c00}; },
       {up + "bias", "model without"}},
      {"awq_gemm", erase("qzeros"), {up + "qzeros", "missing"}},
      {"awq_gemm", shape("qzeros", {16, 2}), {up + "qzeros", "[16, 2]", "[2, 16]"}},
      {"awq_gemv", shape("scales", {32, 128}), {up + "scales", "[32, 128]", "[128, 32]"}},
      {"awq_gemv",
       [&](Tensors& t) { t.at(up + "scales").As<Float16>()[33] = {0xb800}; },
       {up + "scales", "-0.5"}},
      {"packed_zeros", erase("weight_zero_point"), {up + "weight_zero_point", "missing"}},
      {"packed_zeros", dtype("weight_zero_point", DType::kF32), {"weight_zero_point", "F32"}},
      {"packed_zeros_in_bytes",
       [&](Tensors& t) { t.at(up + "weight_zero_point").As<int8_t>()[0] = 8; },
       {up + "weight_zero_point", "4 bits"}},
      {"packed_groups",
       [&](Tensors& t) { t.at(up + "weight_shape").As<int64_t>()[0] = 64; },
       {up + "weight_shape", "[64, 64]", "[128, 64]"}},
      {"int8_static",
       [&](Tensors& t) { t.at(up + "input_zero_point").As<int8_t>()[0] = 3; },
       {up + "input_zero_point", "zero points of inputs"}},
      {"int8_static", erase("input_scale"), {up + "input_scale", "missing"}},
      {"fp8_blocks", erase("weight_scale_inv"), {up + "weight_scale", "missing"}},
      {"fp8_blocks", shape("weight_scale_inv", {2, 3}), {up + "weight_scale_inv", "[3, 2]"}},
      {"modelopt_awq", shape("pre_quant_scale", {32, 2}), {up + "pre_quant_scale", "[64]"}},
      {"packed_act_order",
       [&](Tensors& t) {
         t[up + "weight_g_idy"] = t.at(up + "weight_g_idx");
         t.erase(up + "weight_g_idx");
       },
       {up + "weight_g_idy", "none that quantized weights"}},
      // What another layout reads must not be ignored: it changes the results.
      {"int8_static",
       [&](Tensors& t) { t[up + "weight_g_idx"] = t.at(up + "weight_scale"); },
       {up + "weight_g_idx", "not read of weights in this format"}},
      {"mxfp4_packed",
       [&](Tensors& t) { t[up + "pre_quant_scale"] = t.at(up + "weight_scale"); },
       {up + "pre_quant_scale", "not read of weights in this format"}},
      {"modelopt_w4a8", erase("input_scale"), {up + "input_scale", "missing"}},
      {"mxfp4_packed",
       [&](Tensors& t) { t.at(up + "weight_scale").As<uint8_t>()[9] = 0xff; },
       {up + "weight_scale", "255"}},
      {"mxfp4_packed", erase("weight_scale"), {up + "weight_scale", "missing"}},
      {"mxfp4_blocks",
       [&](Tensors& t) { t.at("model.layers.0.mlp.up_proj_blocks").shape = {128, 32}; },
       {"up_proj_blocks", "[128, 32]", "[128, 2, 16]"}},
      {"modelopt_nvfp4", erase("weight_scale_2"), {up + "weight_scale_2", "missing"}},
      {"modelopt_nvfp4",
       [&](Tensors& t) { t.at(up + "weight_scale").As<uint8_t>()[9] = 0x7f; },
       {up + "weight_scale", "nan"}},
      {"modelopt_nvfp4",
       [&](Tensors& t) { *t.at(up + "weight_scale_2").As<float>() = 1e-37f; },
       {up + "weight_scale_2", "not numbers of fp32"}},
  };
  for (const Case& c : cases) {
    const Status status = Refusal(c.format, c.change);
    EXPECT_NE(status.message().find("model.safetensors"), std::string::npos) << status.message();
    for (const std::string& part : c.named) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << part << " not in: " << status.message();
    }
  }
}

TEST_F(FaultyLayoutsTest, ADescriptionBesideTheConfigIsNamed) {
  quantized::WriteBoth(folder_, Named("gptq_file"));
  const fs::path file = folder_ / "quantized/quantize_config.json";
  WriteText(file, R"({"bits": 3, "group_size": 128})");
  EXPECT_EQ(HfReader::Open(folder_ / "quantized").status().message(),
            file.string() + ": bits: 3 is not supported; supported are 4 and 8");
  WriteText(file, "{");
  EXPECT_EQ(HfReader::Open(folder_ / "quantized").status().message(),
            file.string() + ": not valid JSON");
}

TEST_F(FaultyLayoutsTest, AFolderWhoseWeightsAreAllPlainIsRead) {
  quantized::WriteBoth(folder_, Named("awq_file"));
  WriteText(folder_ / "plain/quant_config.json", Named("awq_file").config);
  const auto reader = HfReader::Open(folder_ / "plain");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_TRUE((*reader)->spec().quantization.is_plain());
  EXPECT_TRUE((*reader)->spec().exceptions.empty());
}

TEST_F(FaultyLayoutsTest, AStoredHeadOfPackedWeightsIsUsedThoughTheConfigTiesIt) {
  const Format format = Named("gptq_head");
  quantized::WriteBoth(folder_, format);
  WriteText(folder_ / "quantized/config.json",
            HfFolder{.extra_config = R"(, "tie_word_embeddings": true, "quantization_config": )" +
                                     format.config}
                .Config());
  const auto reader = HfReader::Open(folder_ / "quantized");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_FALSE((*reader)->spec().tied_head);
  EXPECT_EQ((*reader)->Get({WeightRole::kHead})->dtype, DType::kU8);
}

// For some a checkpoint has no name, and describes them in our words.
TEST_F(FaultyLayoutsTest, ACheckpointOfThemHoldsTheSameWeights) {
  for (const char* name : {"fp8_blocks", "gptq_act_order", "gptq_file", "awq_gemm", "modelopt_awq",
                           "modelopt_w4a8", "modelopt_nvfp4", "mxfp4_blocks", "int8_static"}) {
    fs::remove_all(folder_ / "quantized");
    quantized::WriteBoth(folder_, Named(name));
    const auto converted =
        Convert({.model_dir = folder_ / "quantized", .output_dir = folder_ / "out", .pp_size = 2});
    ASSERT_TRUE(converted.ok()) << name << ": " << converted.status().message();
    const auto folder = HfReader::Open(folder_ / "quantized").value();
    const auto checkpoint = OpenCheckpoint(folder_ / "out");
    ASSERT_TRUE(checkpoint.ok()) << name << ": " << checkpoint.status().message();
    EXPECT_EQ((*checkpoint)->spec().quantization, folder->spec().quantization);
    for (const WeightId& id : StoredWeights(folder->spec())) {
      const Tensor a = folder->Get(id).value();
      const Tensor b = (*checkpoint)->Get(id).value();
      ASSERT_EQ(a.shape, b.shape);
      EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.NumBytes())), 0) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LayoutsTest, ::testing::ValuesIn(Formats()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
