#include "apps/models/quantized_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/testing/file_size_limit.h"
#include "base/testing/source_dir.h"
#include "base/testing/temporary_folder.h"
#include "engine_folder/source.h"
#include "quantize/quantize.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using Element = QuantScheme::Element;
using Scheme = CalibratedQuantization::Scheme;
using testing::HasSubstr;

constexpr int kCrashed = 9;

// The embedded draft model, of which each test may change a copy.
class QuantizedModelTest : public testing::Test {
 protected:
  QuantizedModelTest() {
    fs::copy(SourceDir() / "models/dictionary/draft", model_);
    // One instruction set: "auto" measures, and may choose differently each time.
    where_.cache_dir = folder_.path() / "cache";
    where_.backend.device = "cpu";
    where_.backend.cpu = {
        .num_threads = 1, .pin_threads = false, .isa = ops::SupportedCpuIsas().back()};
  }

  Result<fs::path> Make(const CalibratedQuantization& what) const {
    return QuantizedModel(model_, what, where_);
  }
  Result<fs::path> Make() const { return Make(what_); }

  fs::path Folder(const CalibratedQuantization& what) const {
    const auto folder = QuantizedFolder(model_, what, where_);
    EXPECT_TRUE(folder.ok()) << folder.status().message();
    return folder.ok() ? *folder : fs::path();
  }
  fs::path Folder() const { return Folder(what_); }

  // In a process of its own, whose exit code is that of `work`.
  static pid_t Start(const std::function<int()>& work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    return child;
  }
  static int ExitCode(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static std::map<std::string, std::string> FilesOf(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files[entry.path().filename()] = *ReadTextFile(entry.path());
    }
    return files;
  }

  const TemporaryFolder folder_;
  const fs::path model_ = folder_.path() / "model";
  QuantizedModelOptions where_;
  CalibratedQuantization what_{.scheme = Scheme::kAwq, .calib_size = 4};
};

TEST_F(QuantizedModelTest, IsMadeOnceAndServableAlone) {
  const auto made = Make();
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(*made, Folder());
  const auto opened = OpenModel(*made);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->spec().quantization.element, Element::kInt4);
  EXPECT_EQ(opened->spec().quantization.block_columns, 128);
  EXPECT_EQ(opened->tokenizer_dir, *made);
  EXPECT_TRUE(fs::exists(*made / "generation_config.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator(made->parent_path()), {}), 1) << "work files stay";

  const auto time = fs::last_write_time(*made / "rank0.safetensors");
  where_.check = [] { return Internal("the second call makes it again"); };
  const auto again = Make();
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, *made);
  EXPECT_EQ(fs::last_write_time(*made / "rank0.safetensors"), time);
}

TEST_F(QuantizedModelTest, EachOptionWithAnEffectHasAResultOfItsOwn) {
  std::map<fs::path, int> seen;
  const auto see = [&](const CalibratedQuantization& what) { EXPECT_EQ(++seen[Folder(what)], 1); };
  const CalibratedQuantization smooth{.scheme = Scheme::kSmoothQuant};
  see(smooth);
  CalibratedQuantization other = smooth;
  other.alpha = 0.5;
  see(other);
  other = smooth;
  other.per_token = true;
  see(other);
  other = smooth;
  other.calib_size = 31;
  see(other);
  other = smooth;
  other.calib_batch_size = 1;
  see(other);
  const CalibratedQuantization awq{.scheme = Scheme::kAwq};
  see(awq);
  other = awq;
  other.block_size = 64;
  see(other);
  other = awq;
  other.awq_format = "w4a8_awq";
  see(other);
  see({.scheme = Scheme::kFp8});

  // Without an effect, and of other schemes.
  other = smooth;
  other.per_channel = other.multi_query_mode = other.use_fp8_context_fmha = true;
  other.block_size = 64;
  EXPECT_EQ(Folder(other), Folder(smooth));
}

TEST_F(QuantizedModelTest, WhatTheFolderHoldsDecidesAndNotWhereItIs) {
  const fs::path before = Folder();
  const fs::path weights = model_ / "model.safetensors";
  const auto time = fs::last_write_time(weights);
  const fs::path moved = folder_.path() / "elsewhere" / "model";
  fs::create_directories(moved.parent_path());
  fs::rename(model_, moved);
  EXPECT_EQ(QuantizedFolder(moved, what_, where_).value(), before);
  fs::rename(moved, model_);
  std::ofstream(model_ / "notes.md") << "not of the model";
  EXPECT_EQ(Folder(), before);

  fs::last_write_time(weights, time + std::chrono::seconds(1));
  EXPECT_NE(Folder(), before) << "changed in place";
  std::string bytes = *ReadTextFile(weights);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(weights, std::ios::binary) << bytes;
  fs::last_write_time(weights, time);
  EXPECT_NE(Folder(), before) << "other weights of the same size and time";
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(weights, std::ios::binary) << bytes;
  fs::last_write_time(weights, time);
  EXPECT_EQ(Folder(), before);

  std::ofstream(model_ / "tokenizer_config.json", std::ios::app) << "\n";
  const fs::path retold = Folder();
  EXPECT_NE(retold, before) << "the tokenizer's files go along";
  where_.config.rotary_base = 5e5;
  EXPECT_NE(Folder(), retold) << "options of the config";
}

TEST_F(QuantizedModelTest, TextsToCalibrateWithAreComparedByContent) {
  folder_.Write("a.txt", "one text\n");
  folder_.Write("b.txt", "one text\n");
  folder_.Write("c.txt", "another text\n");
  std::map<std::string, fs::path> folders;
  for (const std::string name : {"a.txt", "b.txt", "c.txt", ""}) {
    where_.calib_dataset = name.empty() ? name : (folder_.path() / name).string();
    folders[name] = Folder();
  }
  EXPECT_EQ(folders["a.txt"], folders["b.txt"]);
  EXPECT_NE(folders["a.txt"], folders["c.txt"]);
  EXPECT_NE(folders["a.txt"], folders[""]);
}

// The first process is stopped in the middle until the second one says that it waits.
TEST_F(QuantizedModelTest, OfTwoProcessesOneMakesItAndTheOtherWaits) {
  int made[2], waits[2];
  ASSERT_EQ(::pipe(made), 0);
  ASSERT_EQ(::pipe(waits), 0);
  char byte = 0;
  const pid_t maker = Start([&] {
    bool first = true;
    where_.check = [&]() -> Status {
      if (first && (::write(made[1], "m", 1) != 1 || ::read(waits[0], &byte, 1) != 1)) ::_exit(2);
      first = false;
      return {};
    };
    return Make().ok() && !first ? 0 : 1;
  });
  ASSERT_EQ(::read(made[0], &byte, 1), 1);
  EXPECT_FALSE(fs::exists(Folder()));
  const pid_t waiter = Start([&] {
    bool waited = false;
    where_.check = [&]() -> Status {
      if (!waited && ::write(waits[1], "w", 1) != 1) ::_exit(2);
      waited = true;
      return fs::exists(Folder().string() + ".lock") ? Status() : Internal("makes it itself");
    };
    return Make().ok() && waited ? 0 : 1;
  });
  EXPECT_EQ(ExitCode(maker), 0);
  EXPECT_EQ(ExitCode(waiter), 0);
  EXPECT_TRUE(OpenModel(Folder()).ok());
  for (const int end : {made[0], made[1], waits[0], waits[1]}) ::close(end);
}

TEST_F(QuantizedModelTest, WaitingEndsWhenItIsAskedTo) {
  fs::create_directories(Folder().parent_path());
  const auto lock = FileLock::Take(Folder().string() + ".lock").value();
  int looks = 0;
  where_.check = [&looks] { return ++looks < 3 ? Status() : Cancelled("stopped"); };
  EXPECT_EQ(Make().status().code(), Code::kCancelled);
  EXPECT_EQ(looks, 3);
}

TEST_F(QuantizedModelTest, ACrashInTheMiddleLeavesNothingThatIsTakenForWhole) {
  QuantizedModelOptions elsewhere = where_;
  elsewhere.cache_dir = folder_.path() / "whole";
  const pid_t other = Start([&] { return QuantizedModel(model_, what_, elsewhere).ok() ? 0 : 1; });
  ASSERT_EQ(ExitCode(other), 0);
  const auto whole = FilesOf(QuantizedFolder(model_, what_, elsewhere).value());
  // In calibration at first, while it writes at last.
  for (const int crash_at : {1, 2, 5, 20}) {
    const pid_t child = Start([&] {
      int looks = 0;
      where_.check = [&]() -> Status {
        if (++looks == crash_at) ::_exit(kCrashed);
        return {};
      };
      return Make().ok() ? 0 : 1;
    });
    const int code = ExitCode(child);
    if (code == 0) break;  // what was calibrated before is kept: it needs fewer steps each time
    ASSERT_EQ(code, kCrashed);
    EXPECT_FALSE(fs::exists(Folder()));
  }
  ASSERT_TRUE(Make().ok());
  EXPECT_EQ(FilesOf(Folder()), whole);
}

TEST_F(QuantizedModelTest, ADiskWithoutRoomIsToldBeforeAnythingIsComputed) {
  fs::path asked;
  where_.free_bytes = [&asked](const fs::path& folder) {
    asked = folder;
    return int64_t{100'000};
  };
  where_.check = [] { return Internal("it began"); };
  const auto made = Make();
  EXPECT_EQ(made.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(made.status().message(), HasSubstr("--quantize awq: "));
  EXPECT_THAT(made.status().message(), HasSubstr("the disk has 97.7 KiB left"));
  EXPECT_THAT(made.status().message(), HasSubstr("DJL_CACHE_DIR"));
  EXPECT_EQ(asked, Folder().parent_path());
  EXPECT_TRUE(fs::is_empty(asked));
}

TEST_F(QuantizedModelTest, ADiskThatFillsUpLeavesNothingThatIsTakenForWhole) {
  {
    const FileSizeLimit limit(100'000);
    const auto made = Make();
    EXPECT_FALSE(made.ok());
    EXPECT_THAT(made.status().message(), HasSubstr("the same command goes on"));
  }
  EXPECT_FALSE(fs::exists(Folder()));
  EXPECT_TRUE(Make().ok());
  EXPECT_TRUE(OpenModel(Folder()).ok());
}

TEST_F(QuantizedModelTest, ADamagedResultIsMadeAgain) {
  ASSERT_TRUE(Make().ok());
  const auto whole = FilesOf(Folder());
  fs::resize_file(Folder() / "rank0.safetensors", 1000);
  testing::internal::CaptureStderr();
  const auto made = Make();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is made again"));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(FilesOf(Folder()), whole);
}

TEST_F(QuantizedModelTest, ADamagedFileBesideTheWeightsHasItMadeAgain) {
  where_.tokenizer_dir = folder_.path() / "tokenizer";
  fs::copy(model_, where_.tokenizer_dir);
  std::ofstream(where_.tokenizer_dir / "special_tokens_map.json") << "{ }";
  ASSERT_TRUE(Make().ok());
  const auto whole = FilesOf(Folder());
  EXPECT_EQ(whole.size(), 6u);
  const auto is_taken = [&] {
    QuantizedModelOptions only_kept = where_;
    only_kept.only_kept = true;
    return QuantizedModel(model_, what_, only_kept).ok();
  };
  for (const auto& [name, text] : whole) {
    SCOPED_TRACE(name);
    const fs::path file = Folder() / name;
    fs::resize_file(file, text.size() / 2);
    EXPECT_FALSE(is_taken());
    fs::remove(file);
    EXPECT_FALSE(is_taken());
    std::ofstream(file, std::ios::binary) << text << " ";
    EXPECT_FALSE(is_taken());
    std::ofstream(file, std::ios::binary) << text;
    EXPECT_TRUE(is_taken());
  }
  fs::resize_file(Folder() / "tokenizer.json", 1000);
  testing::internal::CaptureStderr();
  const auto made = Make();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("(tokenizer.json is not the file that was written) and is made again"));
  EXPECT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE(FilesOf(Folder()) == whole);
}

TEST_F(QuantizedModelTest, AFolderForCachesThatCannotBeMadeIsNamed) {
  folder_.Write("cache", "a file");
  const auto made = Make();
  EXPECT_EQ(made.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(made.status().message(), HasSubstr((folder_.path() / "cache").string()));
  EXPECT_THAT(made.status().message(), HasSubstr("DJL_CACHE_DIR"));
}

TEST_F(QuantizedModelTest, AQuantizedModelIsServedAsItIsIfItIsOfThatKind) {
  const auto made = Make();
  ASSERT_TRUE(made.ok());
  // A checkpoint, whatever its kind.
  EXPECT_EQ(QuantizedModel(*made, {.scheme = Scheme::kFp8}, where_).value(), *made);

  const fs::path folder = folder_.path() / "int8";
  const auto backend = ops::MakeCpuBackend(where_.backend.cpu).value();
  const auto exported = Quantize({.model_dir = model_,
                                  .output_dir = folder,
                                  .recipe = tandem::RecipeOf("int8_wo", 0, "none").value(),
                                  .folder = FolderKind::kHuggingFace},
                                 {}, *backend);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  EXPECT_EQ(QuantizedModel(folder, {.scheme = Scheme::kSmoothQuant}, where_).value(), folder);
  const auto refused = QuantizedModel(folder, {.scheme = Scheme::kAwq}, where_);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("is quantized already, in int8"));
}

TEST_F(QuantizedModelTest, OptionsSayHowItIsRounded) {
  const auto per_token = RecipeOf({.scheme = Scheme::kSmoothQuant, .per_token = true});
  EXPECT_EQ(per_token->scheme.inputs, QuantScheme::Inputs::kDynamic);
  EXPECT_EQ(per_token->smooth_alpha, 0.8);
  EXPECT_EQ(RecipeOf({.scheme = Scheme::kSmoothQuant})->scheme.inputs,
            QuantScheme::Inputs::kStatic);
  EXPECT_EQ(RecipeOf({.scheme = Scheme::kAwq, .block_size = 64})->scheme.block_columns, 64);
  EXPECT_EQ(RecipeOf({.scheme = Scheme::kFp8})->scheme.element, Element::kFp8E4M3);

  const auto field = [](const CalibratedQuantization& what) {
    return std::string(RecipeOf(what).status().field());
  };
  EXPECT_EQ(field({.scheme = Scheme::kSmoothQuant, .alpha = 1.5}), "smoothquant_alpha");
  EXPECT_EQ(field({.scheme = Scheme::kAwq, .block_size = 32}), "awq_block_size");
  EXPECT_EQ(field({.scheme = Scheme::kAwq, .awq_format = "int3"}), "awq_format");
  EXPECT_EQ(field({.calib_size = 0}), "calib_size");
  EXPECT_EQ(field({.calib_batch_size = -1}), "calib_batch_size");
}

}  // namespace
}  // namespace tandem::apps
