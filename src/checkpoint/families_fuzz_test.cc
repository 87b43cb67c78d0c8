// The tiny model of each family with one fault at a time: a key of its config that is absent, of
// another type, absurd or unknown; a tensor that is absent or of another name, shape or type. Each
// is refused by a sentence that names the file and the key or a tensor, or it is computed with.
// TANDEM_TEST_FAULTS sets how many of each kind; the slow test makes 400.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "model/testing/decoder_driver.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Random = std::mt19937;

constexpr int kTokens = 3;

int Faults() {
  const char* const asked = std::getenv("TANDEM_TEST_FAULTS");
  return asked == nullptr ? 20 : std::atoi(asked);
}

// Every value of a config, at any depth: the path of each.
void CollectPaths(const Json& json, const Json::json_pointer& at,
                  std::vector<Json::json_pointer>& paths) {
  if (!at.empty()) paths.push_back(at);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) CollectPaths(value, at / key, paths);
}

Json Absurd(const Json& value, Random& random) {
  const Json kValues[] = {nullptr,
                          true,
                          false,
                          -1,
                          0,
                          1,
                          3,
                          1e300,
                          INT64_MAX,
                          int64_t{1} << 40,
                          0.5,
                          -1e-9,
                          1e-40,
                          "tandem",
                          "",
                          {1, 2},
                          {},
                          "gelu",
                          Json::object(),
                          std::string(100'000, 'x')};
  const size_t choice = random() % (std::size(kValues) + 3);
  if (choice < std::size(kValues) || !value.is_number_integer()) {
    return kValues[choice % std::size(kValues)];
  }
  const int64_t number = value.get<int64_t>();
  if (choice == std::size(kValues)) return number * 2;
  return choice == std::size(kValues) + 1 ? number + 1 : -number;
}

// A fault of the config, and the name of the key that has it.
struct Fault {
  std::string key;
  std::string what;  // for people
};

Fault BreakConfig(Json& config, Random& random) {
  std::vector<Json::json_pointer> paths;
  CollectPaths(config, Json::json_pointer(), paths);
  const Json::json_pointer at = paths[random() % paths.size()];
  const std::string key = at.back();
  if (config[at].is_object() && random() % 2 == 0) {
    config[at]["tandem_unknown"] = Absurd(nullptr, random);
    return {"tandem_unknown", at.to_string() + " with an unknown key"};
  }
  if (random() % 4 == 0) {
    config[at.parent_pointer()].erase(key);
    return {key, "without " + at.to_string()};
  }
  config[at] = Absurd(config[at], random);
  return {key, at.to_string() + " is " + config[at].dump().substr(0, 60)};
}

// A fault of one of the tensors.
std::string BreakTensors(std::vector<NamedTensor>& tensors, Random& random) {
  const size_t at = random() % tensors.size();
  Tensor& tensor = tensors[at].tensor;
  const std::string name = tensors[at].name;
  Shape& shape = tensor.shape;
  switch (random() % 7) {
    case 0:
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(at));
      return name + " is absent";
    case 1:
      tensors[at].name += random() % 2 == 0 ? "x" : ".weight";
      return name + " is " + tensors[at].name;
    case 2:
      if (shape.rank() == 2) shape = {shape[1], shape[0]};
      return name + " is transposed";
    case 3:
      shape = shape.rank() == 2 ? Shape{shape[0] / 2, shape[1]} : Shape{shape[0] / 2};
      return name + " has half of its rows";
    case 4:
      shape = {shape.NumElements()};
      return name + " has one dimension";
    case 5:
      shape = {0, shape.rank() > 1 ? shape[1] : 4};
      return name + " is empty";
    default:
      if (SizeOf(tensor.dtype) == 4) tensor.dtype = DType::kI32;
      if (SizeOf(tensor.dtype) == 2) {
        tensor.dtype = DType::kU8;
        shape = {shape.NumElements() * 2};
      }
      return name + " is of integers";
  }
}

// Whether a message names a tensor or a key: that with the fault, another that it contradicts, or
// one that is missing, of those that mean the same.
bool Names(const std::string& message, const Json& config, const std::string& key) {
  std::vector<Json::json_pointer> paths;
  CollectPaths(config, Json::json_pointer(), paths);
  std::vector<std::string> names = {key, "tensor \"", ": is missing"};
  for (const Json::json_pointer& path : paths) names.push_back(path.back());
  return std::ranges::any_of(
      names, [&](const std::string& name) { return message.find(name) != std::string::npos; });
}

class FamiliesFuzzTest : public FolderTest, public ::testing::WithParamInterface<std::string> {
 protected:
  FamiliesFuzzTest() : whole_(FixturesFolder() / GetParam()) {}

  // Reads the folder and computes with it, as far as it goes.
  Status Use() {
    TANDEM_ASSIGN_OR_RETURN(const auto reader, HfReader::Open(folder_));
    auto weights = LoadWeights(*reader, *backend_, kTokens);
    if (!weights.ok()) return weights.status();
    DecoderTestDriver driver(*weights, *backend_, kTokens);
    driver.Feed(std::vector<int32_t>(kTokens, 1));
    return {};
  }

  const fs::path whole_;
  const std::unique_ptr<ops::Backend> backend_ =
      ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
};

TEST_P(FamiliesFuzzTest, AFaultOfTheConfigIsNamedOrComputedWith) {
  fs::create_symlink(whole_ / "model.safetensors", folder_ / "model.safetensors");
  const Json whole = Json::parse(*ReadTextFile(whole_ / "config.json"));
  Random random(16);
  int refused = 0;
  for (int i = 0; i < Faults(); ++i) {
    Json config = whole;
    const Fault fault = BreakConfig(config, random);
    WriteText(folder_ / "config.json", config.dump());
    const Status status = Use();
    if (status.ok()) continue;
    ++refused;
    const std::string& message = status.message();
    EXPECT_TRUE(Names(message, whole, fault.key)) << fault.what << "\n  " << message;
    EXPECT_NE(message.find(folder_.string() + "/"), std::string::npos)
        << fault.what << "\n  " << message;
    EXPECT_LT(message.size(), 2000u) << fault.what;
    EXPECT_NE(status.code(), Code::kInternal) << fault.what << "\n  " << message;
  }
  EXPECT_GE(refused, 1);
}

// Also of keys that only this family has: a spelling that config_words.cc lacks is found here.
TEST_P(FamiliesFuzzTest, ANumberThatCannotBeIsNamedByItsOwnKey) {
  const Json whole = Json::parse(*ReadTextFile(whole_ / "config.json"));
  std::vector<Json::json_pointer> paths;
  CollectPaths(whole, Json::json_pointer(), paths);
  int refused = 0;
  for (const Json::json_pointer& at : paths) {
    if (!whole[at].is_number()) continue;
    for (const int number : {0, -1}) {
      Json config = whole;
      config[at] = number;
      const auto spec = SpecFromHfConfig(config.dump());
      if (spec.ok()) continue;
      ++refused;
      const std::regex word("\\b" + at.back() + "\\b");  // not the n_head of num_attention_heads
      EXPECT_TRUE(std::regex_search(spec.status().message(), word))
          << at.to_string() << " is " << number << "\n  " << spec.status().message();
    }
  }
  EXPECT_GE(refused, 10);
}

TEST_P(FamiliesFuzzTest, AFaultOfATensorIsNamed) {
  fs::copy(whole_ / "config.json", folder_ / "config.json");
  const auto file = SafetensorsFile::Open(whole_ / "model.safetensors").value();
  Random random(17);
  int refused = 0;
  for (int i = 0; i < Faults(); ++i) {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : file->tensors()) tensors.push_back({name, tensor});
    const std::string what = BreakTensors(tensors, random);
    ASSERT_TRUE(WriteSafetensors(folder_ / "model.safetensors", tensors).ok());
    const Status status = Use();
    if (status.ok()) continue;  // a buffer that is not read, a square matrix
    ++refused;
    EXPECT_NE(status.message().find("model.safetensors: tensor \""), std::string::npos)
        << what << "\n  " << status.message();
    EXPECT_NE(status.message().find(what.substr(0, what.find(' '))), std::string::npos)
        << what << "\n  " << status.message();
  }
  EXPECT_GE(2 * refused, Faults());
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamiliesFuzzTest, ::testing::ValuesIn(FamilyFixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
