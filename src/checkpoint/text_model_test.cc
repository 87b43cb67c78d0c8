// The text models of folders that hold others beside them, as Google ships Gemma 3 and Mistral its
// small models: under either version's names of tensors they are the models that they are alone.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

struct Beside {
  const char* fixture;
  const char* architecture;
  bool is_new;  // as transformers 5 names tensors, not as 4 does
};
void PrintTo(const Beside& beside, std::ostream* out) {
  *out << beside.architecture << (beside.is_new ? ", new" : ", old");
}

class TextModelTest : public FolderTest, public ::testing::WithParamInterface<Beside> {
 protected:
  static std::string NameBeside(const std::string& name) {
    if (!GetParam().is_new) return "language_model." + name;
    constexpr std::string_view kModel = "model.";
    if (!name.starts_with(kModel)) return name;  // the head
    return "model.language_model." + name.substr(kModel.size());
  }
  void SetUp() override {
    FolderTest::SetUp();
    const auto alone = FixtureOf(GetParam().fixture);
    nlohmann::json config = {{"architectures", {GetParam().architecture}},
                             {"torch_dtype", "float32"},
                             {"vision_config", nlohmann::json::object()},
                             {"eos_token_id", {1, 2}}};
    auto text = nlohmann::json::parse(ReadTextFile(alone / "config.json").value());
    for (const char* key : {"architectures", "torch_dtype", "eos_token_id"}) text.erase(key);
    config["text_config"] = text;
    WriteText(folder_ / "config.json", config.dump());
    const auto file = SafetensorsFile::Open(alone / "model.safetensors").value();
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : file->tensors()) {
      tensors.push_back({NameBeside(name), tensor});
    }
    tensors.push_back({"vision_tower.weight", tensors.front().tensor});
    ASSERT_TRUE(WriteSafetensors(folder_ / "model.safetensors", tensors).ok());
  }
};

TEST_P(TextModelTest, IsTheModelThatItIsAlone) {
  const auto alone = HfReader::Open(FixtureOf(GetParam().fixture)).value();
  const auto beside = HfReader::Open(folder_);
  ASSERT_TRUE(beside.ok()) << beside.status().message();
  EXPECT_EQ((*beside)->spec().layers, alone->spec().layers);
  EXPECT_EQ((*beside)->spec().eos_ids, (std::vector<int32_t>{1, 2}));
  for (const WeightId& id : StoredWeights(alone->spec())) {
    const auto a = alone->Get(id), b = (*beside)->Get(id);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
    ASSERT_EQ(a->shape, b->shape);
    EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, TextModelTest,
    ::testing::Values(Beside{"gemma3_text", "Gemma3ForConditionalGeneration", false},
                      Beside{"gemma3_text", "Gemma3ForConditionalGeneration", true},
                      Beside{"mistral", "Mistral3ForConditionalGeneration", false},
                      Beside{"mistral", "Mistral3ForConditionalGeneration", true}));

}  // namespace
}  // namespace tandem
