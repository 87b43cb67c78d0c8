// Every kind of folder that is read, with bits flipped and files cut short: refused with the file's
// name, or read with nothing but the bits of elements changed. TANDEM_TEST_DAMAGES sets how many of
// each; the slow test makes 200.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/testing/source_dir.h"
#include "checkpoint/convert.h"
#include "checkpoint/testing/golden.h"
#include "checkpoint/testing/quantized_folder.h"
#include "checkpoint/testing/torch_folder.h"
#include "engine_folder/build.h"
#include "engine_folder/source.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

int Damages() {
  const char* const asked = std::getenv("TANDEM_TEST_DAMAGES");
  return asked == nullptr ? 8 : std::atoi(asked);
}

struct Kind {
  std::string name;
  std::function<void(const fs::path& folder)> write;
};

fs::path Checkpoints() { return SourceDir() / "tests/data/checkpoints"; }

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {
      {"safetensors",
       [](const fs::path& folder) { HfFolder{.extra_config = "", .num_shards = 2}.Write(folder); }},
      {"torch",
       [](const fs::path& folder) {
         HfFolder{.extra_config = "", .num_shards = 2}.Write(folder);
         SaveWithTorch(folder);
       }},
      {"engine",
       [](const fs::path& folder) {
         const fs::path awq = Checkpoints() / "awq_pp2_tp2";
         ASSERT_TRUE(Build({.checkpoint_dir = awq, .output_dir = folder}).ok());
       }},
      {"engine_bf16",
       [](const fs::path& folder) {
         HfFolder{}.Write(folder / "hf");
         ASSERT_TRUE(Build({.checkpoint_dir = folder / "hf", .output_dir = folder / "e"}).ok());
         fs::remove_all(folder / "hf");
         for (const char* file : {"config.json", "rank0.engine"}) {
           fs::rename(folder / "e" / file, folder / file);
         }
         fs::remove_all(folder / "e");
       }},
  };
  for (const quantized::Format& format : quantized::Formats()) {
    kinds.push_back({format.name, [format](const fs::path& folder) {
                       quantized::WriteBoth(folder, format);
                       for (const auto& entry : fs::directory_iterator(folder / "quantized")) {
                         fs::rename(entry.path(), folder / entry.path().filename());
                       }
                       fs::remove_all(folder / "quantized");
                       fs::remove_all(folder / "plain");
                     }});
  }
  for (const std::string& name : GoldenModels(Checkpoints())) {
    kinds.push_back({"checkpoint_" + name, [name](const fs::path& folder) {
                       fs::copy(Checkpoints() / name, folder);
                       fs::remove(folder / "golden.safetensors");
                       fs::remove(folder / "golden.json");
                     }});
  }
  return kinds;
}

// For messages.
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Bits of zero points are like those of elements: they may make symmetric weights asymmetric.
std::string Described(ModelSpec spec) {
  spec.quantization.zero_points = false;
  std::erase_if(spec.exceptions, [&](SchemeException& weight) {
    weight.scheme.zero_points = false;
    return weight.scheme == spec.quantization && RowOf(weight.role).quantizable;
  });
  return SpecToJson(spec);
}

class DamageTest : public FolderTest, public ::testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    GetParam().write(folder_);
    for (const auto& entry : fs::directory_iterator(folder_)) files_.push_back(entry.path());
    std::ranges::sort(files_);
    const auto whole = Read();
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    spec_ = *whole;
  }

  // What the folder holds, once every weight was read.
  Result<ModelSpec> Read() const {
    TANDEM_ASSIGN_OR_RETURN(const ModelSource model, OpenModel(folder_));
    for (const WeightId& id : StoredWeights(model.spec())) {
      TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, model.weights->Get(id));
      EXPECT_EQ(tensor.shape, WeightShape(model.spec(), id));
      EXPECT_EQ(tensor.dtype, WeightDType(model.spec(), id));
      // All of it is in memory that may be read.
      const auto* bytes = static_cast<const volatile std::byte*>(tensor.data);
      for (int64_t i = 0; i < tensor.NumBytes(); i += 64) (void)bytes[i];
      if (tensor.NumBytes() > 0) (void)bytes[tensor.NumBytes() - 1];
      model.weights->Release();
    }
    TANDEM_RETURN_IF_ERROR(model.weights->Finish());
    return model.spec();
  }

  void ExpectRefusedOrHarmless(const fs::path& damaged, const std::string& how) const {
    const auto read = Read();
    if (!read.ok()) {
      EXPECT_NE(read.status().message().find(folder_.string() + "/"), std::string::npos)
          << how << ": " << read.status().message();
      return;
    }
    // A config may say something else that is just as possible; weights may not.
    if (damaged.extension() != ".json") {
      EXPECT_EQ(Described(*read), Described(spec_)) << how;
    }
  }

  std::vector<fs::path> files_;
  ModelSpec spec_;
};

TEST_P(DamageTest, FlippedBitsAreRefusedOrThoseOfElements) {
  std::mt19937 random(99);
  for (int i = 0; i < Damages(); ++i) {
    const fs::path& path = files_[random() % files_.size()];
    const std::string good = *ReadTextFile(path);
    // What describes the tensors is at the beginning or at the end.
    size_t at = random() % good.size();
    const size_t edge = std::min<size_t>(good.size(), 4096);
    if (i % 4 == 1) at = random() % edge;
    if (i % 4 == 2) at = good.size() - 1 - random() % edge;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    WriteText(path, bad);
    ExpectRefusedOrHarmless(path, path.filename().string() + " at " + std::to_string(at));
    WriteText(path, good);
  }
}

TEST_P(DamageTest, TruncatedFilesAreRefused) {
  std::mt19937 random(98);
  for (int i = 0; i < Damages(); ++i) {
    const fs::path& path = files_[random() % files_.size()];
    const std::string good = *ReadTextFile(path);
    WriteText(path, good.substr(0, random() % good.size()));
    const auto read = Read();
    // The last byte of a config is a line's end.
    const bool as_good = read.ok() && *read == spec_;
    EXPECT_TRUE(!read.ok() || (as_good && path.extension() == ".json")) << path;
    if (!read.ok()) {
      EXPECT_NE(read.status().message().find(folder_.string() + "/"), std::string::npos)
          << read.status().message();
    }
    WriteText(path, good);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DamageTest, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
