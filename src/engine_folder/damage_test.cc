// Every kind of folder that is read, with bits flipped and files cut short: refused with the file's
// name, or read with nothing but the bits of elements changed; what this program wrote, with none
// changed. TANDEM_TEST_DAMAGES sets how many of
// each; the slow test makes 200.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/checksum.h"
#include "base/testing/source_dir.h"
#include "checkpoint/convert.h"
#include "checkpoint/testing/golden.h"
#include "checkpoint/testing/quantized_folder.h"
#include "checkpoint/testing/torch_folder.h"
#include "engine_folder/build.h"
#include "engine_folder/source.h"
#include "quantize/quantize.h"

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
  bool has_checksums = true;  // of every tensor
};

fs::path Checkpoints() { return SourceDir() / "tests/data/checkpoints"; }

// The files of a folder, into the one that it is in.
void MoveUp(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    fs::rename(entry.path(), folder.parent_path() / entry.path().filename());
  }
  fs::remove(folder);
}

void Quantized(const std::string& qformat, FolderKind kind, const fs::path& folder) {
  HfFolder{}.Write(folder / "hf");
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  const auto report = Quantize({.model_dir = folder / "hf",
                                .output_dir = folder / "out",
                                .recipe = RecipeOf(qformat, 64, "none").value(),
                                .folder = kind,
                                .num_threads = 1},
                               {}, *backend);
  ASSERT_TRUE(report.ok()) << report.status().message();
  MoveUp(folder / "out");
  fs::remove_all(folder / "hf");
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {
      {"safetensors",
       [](const fs::path& folder) { HfFolder{.extra_config = "", .num_shards = 2}.Write(folder); }},
      {"torch",
       [](const fs::path& folder) {
         HfFolder{.extra_config = "", .num_shards = 2}.Write(folder);
         SaveWithTorch(folder);
       },
       false},
      {"convert",
       [](const fs::path& folder) {
         HfFolder{}.Write(folder / "hf");
         ASSERT_TRUE(Convert({.model_dir = folder / "hf", .output_dir = folder / "out"}).ok());
         MoveUp(folder / "out");
         fs::remove_all(folder / "hf");
       }},
      {"quantize",
       [](const fs::path& folder) { Quantized("int4_wo", FolderKind::kCheckpoint, folder); }},
      {"quantize_hf",
       [](const fs::path& folder) { Quantized("int4_wo", FolderKind::kHuggingFace, folder); }},
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
         MoveUp(folder / "e");
       }},
  };
  for (const quantized::Format& format : quantized::Formats()) {
    kinds.push_back({format.name, [format](const fs::path& folder) {
                       quantized::WriteBoth(folder, format);
                       MoveUp(folder / "quantized");
                       fs::remove_all(folder / "plain");
                     }});
  }
  for (const std::string& name : GoldenModels(Checkpoints())) {
    kinds.push_back({"checkpoint_" + name,
                     [name](const fs::path& folder) {
                       fs::copy(Checkpoints() / name, folder);
                       fs::remove(folder / "golden.safetensors");
                       fs::remove(folder / "golden.json");
                     },
                     false});
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
    whole_ = *whole;
  }

  // What the folder holds, once every weight was read.
  struct Contents {
    ModelSpec spec;
    std::string checksums;  // of the weights
    bool operator==(const Contents&) const = default;
  };
  Result<Contents> Read() const {
    Contents contents;
    TANDEM_ASSIGN_OR_RETURN(const ModelSource model, OpenModel(folder_));
    for (const WeightId& id : StoredWeights(model.spec())) {
      TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, model.weights->Get(id));
      EXPECT_EQ(tensor.shape, WeightShape(model.spec(), id));
      EXPECT_EQ(tensor.dtype, WeightDType(model.spec(), id));
      // All of it is in memory that may be read.
      contents.checksums += Checksum(
          {static_cast<const std::byte*>(tensor.data), static_cast<size_t>(tensor.NumBytes())});
      model.weights->Release();
    }
    TANDEM_RETURN_IF_ERROR(model.weights->Finish());
    contents.spec = model.spec();
    return contents;
  }

  void ExpectRefusedOrHarmless(const fs::path& damaged, const std::string& how) const {
    const auto read = Read();
    if (!read.ok()) {
      EXPECT_NE(read.status().message().find(folder_.string() + "/"), std::string::npos)
          << how << ": " << read.status().message();
      return;
    }
    // A config may say something else that is just as possible; weights may not.
    if (damaged.extension() == ".json") return;
    EXPECT_EQ(Described(read->spec), Described(whole_.spec)) << how;
    if (GetParam().has_checksums) {
      EXPECT_EQ(*read, whole_) << how;
    }
  }

  std::vector<fs::path> files_;
  Contents whole_;
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
    const bool as_good = read.ok() && *read == whole_;
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
