#include "quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/testing/file_size_limit.h"
#include "checkpoint/convert.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "ops/testing/failing_backend.h"
#include "quantize/testing/quantize_fixture.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Element = QuantScheme::Element;
using testing::HasSubstr;

void FlipBit(const fs::path& file, size_t at) {
  std::string bytes = *ReadTextFile(file);
  bytes[at] ^= 4;
  WriteText(file, bytes);
}

class StoppedQuantizeTest : public QuantizeTest {
 protected:
  // Of int4_awq, into "out".
  void StopAfterALayer() {
    const QuantizeEvents events{
        .calibrating = [](double done) { return done < 0.6 ? Status() : Cancelled("stopped"); }};
    ASSERT_FALSE(Quantize(Options("int4_awq"), Samples(), *backend_, events).ok());
    ASSERT_TRUE(fs::exists(folder_ / "out.calibration" / "layer-0.safetensors"));
  }
};

TEST_F(QuantizeTest, EveryFormatIsNearThePlainModelAndSaysWhatItIs) {
  struct Case {
    const char* qformat;
    const char* described;
    double error;
  };
  for (const Case& c :
       {Case{"full_prec", "not quantized", 1e-6}, Case{"fp8", "fp8 with static input scales", 0.06},
        Case{"int8_wo", "int8", 0.02}, Case{"int8_sq", "int8 with static input scales", 0.04},
        Case{"int4_wo", "int4", 0.4}, Case{"int4_awq", "int4 in groups of 64", 0.25},
        Case{"w4a8_awq", "int4 in groups of 64 with static input scales", 0.25}}) {
    const auto report = Run(Options(c.qformat, c.qformat));
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(DescribeScheme(report->spec.quantization), c.described);
    const auto checkpoint = OpenCheckpoint(folder_ / c.qformat);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ((*checkpoint)->spec().quantization, report->spec.quantization);
    EXPECT_LE(Error(**checkpoint), c.error) << c.qformat;
    EXPECT_FALSE(fs::exists(folder_ / (std::string(c.qformat) + ".calibration")));
  }
  const auto awq = OpenCheckpoint(folder_ / "int4_awq").value();
  const auto rounded = OpenCheckpoint(folder_ / "int4_wo").value();
  EXPECT_LT(Error(*awq), Error(*rounded));
}

// What the scales move out of the inputs the weights take over: without rounding the model is the
// same. int8 by row is near enough to see it.
TEST_F(QuantizeTest, ScalesThatMoveALotChangeNothingElse) {
  QuantizeOptions options = Options("int8_sq");
  options.recipe.smooth_alpha = 0.8;
  ASSERT_TRUE(Run(options).ok());
  EXPECT_LE(Error(*OpenCheckpoint(folder_ / "out").value()), 0.05);
}

TEST_F(QuantizeTest, ShardsOfAnyNumberOfRanksMergeToTheSameWeights) {
  for (const char* qformat : {"int4_awq", "fp8"}) {
    ASSERT_TRUE(Run(Options(qformat, "one")).ok());
    QuantizeOptions two = Options(qformat, "two");
    two.sharding.tp_size = 2;
    two.recipe.scheme.block_columns = std::min<int64_t>(two.recipe.scheme.block_columns, 32);
    QuantizeOptions one = two;
    one.sharding.tp_size = 1;
    one.output_dir = folder_ / "one";
    ASSERT_TRUE(Run(one).ok());
    const auto report = Run(two);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(fs::exists(folder_ / "two" / "rank1.safetensors"));
    const auto a = OpenCheckpoint(folder_ / "one").value();
    const auto b = OpenCheckpoint(folder_ / "two").value();
    for (const WeightId& id : StoredWeights(a->spec())) {
      const auto x = a->Get(id);
      const auto y = b->Get(id);
      ASSERT_TRUE(x.ok() && y.ok());
      ASSERT_EQ(x->shape, y->shape);
      EXPECT_EQ(std::memcmp(x->data, y->data, static_cast<size_t>(x->NumBytes())), 0)
          << RowOf(id.role).hf_name << " " << RowOf(id.part).hf_suffix;
    }
  }
}

TEST_F(QuantizeTest, RefusesGroupsThatRanksWouldCut) {
  QuantizeOptions options = Options("int4_awq");
  options.sharding.tp_size = 2;
  const auto report = Run(options);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.status().message(), HasSubstr("groups of columns"));
}

TEST_F(QuantizeTest, TheSizeOfABatchChangesMemoryAndNoByte) {
  std::map<int64_t, int64_t> memory;
  for (const int64_t batch_samples : {0, 1}) {
    QuantizeOptions options = Options("int8_sq", "by" + std::to_string(batch_samples));
    options.batch_samples = batch_samples;
    const QuantizeEvents events{.estimate = [&](const CalibrationEstimate& estimate) {
      memory[batch_samples] = estimate.memory_bytes;
    }};
    const auto report = Quantize(options, Samples(), *backend_, events);
    ASSERT_TRUE(report.ok()) << report.status().message();
  }
  EXPECT_LT(memory[1], memory[0]);
  EXPECT_EQ(FilesOf(folder_ / "by1"), FilesOf(folder_ / "by0"));
}

// Wherever it ended, the run that follows goes on and gives the same bytes as one run.
TEST_F(QuantizeTest, ARunThatWasKilledGoesOnAndGivesTheSameBytes) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  const auto whole = FilesOf(folder_ / "whole");
  int interrupted = 0, resumed = 0;
  for (int waits = 0; waits < 120; waits += 13) {
    const fs::path out = folder_ / "out";
    fs::remove_all(out);
    ops::FailingBackend failing(*backend_);
    failing.LoseAfter(waits);
    const auto killed = Quantize(Options("int4_awq"), Samples(), failing);
    if (killed.ok()) continue;
    ++interrupted;
    EXPECT_TRUE(fs::exists(folder_ / "out.calibration"));
    EXPECT_FALSE(fs::exists(out));
    int64_t done = -1;
    const auto report =
        Quantize(Options("int4_awq"), Samples(), *backend_,
                 {.estimate = [&](const CalibrationEstimate& e) { done = e.layers_done; }});
    ASSERT_TRUE(report.ok()) << report.status().message();
    if (done > 0) ++resumed;
    EXPECT_EQ(FilesOf(out), whole) << waits;
    EXPECT_FALSE(fs::exists(folder_ / "out.calibration"));
  }
  EXPECT_GE(interrupted, 3);
  EXPECT_GE(resumed, 1);
}

TEST_F(QuantizeTest, ARunThatWasStoppedSaysWhatIsKeptAndTheNextOneGoesOn) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  const auto stop_at = [](double share) {
    return [=](double done) { return done < share ? Status() : Cancelled("stopped"); };
  };
  const std::string kept = " of 2 layers are calibrated and kept in " +
                           (folder_ / "out.calibration").string() +
                           ", and the same command goes on from there";
  const struct {
    QuantizeEvents events;
    const char* layers;
  } kRuns[] = {{{.calibrating = stop_at(0.0)}, "0"},
               {{.calibrating = stop_at(0.6)}, "1"},
               {{.writing = stop_at(0.5)}, "2"}};
  for (const auto& [events, layers] : kRuns) {
    const auto stopped = Quantize(Options("int4_awq"), Samples(), *backend_, events);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.status().code(), Code::kCancelled);
    EXPECT_EQ(stopped.status().message(), std::string("stopped; ") + layers + kept);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
  }
  ASSERT_TRUE(Run(Options("int4_awq")).ok());
  EXPECT_EQ(FilesOf(folder_ / "out"), FilesOf(folder_ / "whole"));
}

TEST_F(QuantizeTest, AKilledRunIntoTheModelsOwnFolderGoesOn) {
  QuantizeOptions options = Options("int4_awq");
  options.output_dir = options.model_dir / "out";
  int64_t done = 0;
  for (int waits = 120; waits >= 0 && done == 0; waits -= 13) {
    fs::remove_all(options.output_dir);
    ops::FailingBackend failing(*backend_);
    failing.LoseAfter(waits);
    if (Quantize(options, Samples(), failing).ok()) continue;
    WriteText(options.model_dir / "notes.txt", std::to_string(waits));
    const auto report =
        Quantize(options, Samples(), *backend_,
                 {.estimate = [&](const CalibrationEstimate& e) { done = e.layers_done; }});
    ASSERT_TRUE(report.ok()) << report.status().message();
  }
  EXPECT_GT(done, 0);
}

TEST_F(QuantizeTest, AFullDiskLeavesNoResultAndTheNextRunGoesOn) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  for (const rlim_t limit : {rlim_t{0}, rlim_t{2000}, rlim_t{20'000}, rlim_t{50'000}}) {
    {
      const FileSizeLimit full(limit);
      const auto report = Run(Options("int4_awq"));
      ASSERT_FALSE(report.ok()) << limit;
      EXPECT_THAT(report.status().message(), HasSubstr("cannot write"));
      // The first file, which says what is calibrated, has more than the smallest limits.
      if (limit >= 20'000) {
        EXPECT_THAT(report.status().message(), HasSubstr("the same command goes on from there"));
      }
    }
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
  }
  ASSERT_TRUE(Run(Options("int4_awq")).ok());
  EXPECT_EQ(FilesOf(folder_ / "out"), FilesOf(folder_ / "whole"));
}

// The new process makes its own threads: those of a backend do not survive a fork.
TEST_F(QuantizeTest, AKilledProcessLeavesNoResultAndTheNextRunGoesOn) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  const auto whole = FilesOf(folder_ / "whole");
  const QuantizeOptions options = Options("int4_awq");
  int killed = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto backend = ops::MakeCpuBackend(kCpu).value();
      const auto report = Quantize(options, Samples(), *backend);
      if (!report.ok()) std::fprintf(stderr, "%s\n", report.status().message().c_str());
      ::_exit(report.ok() ? 0 : 1);
    }
    ::usleep(static_cast<useconds_t>(5'000 + 7919 * round % 150'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    if (fs::exists(folder_ / "out")) {
      EXPECT_EQ(FilesOf(folder_ / "out"), whole);
      fs::remove_all(folder_ / "out");
    }
  }
  EXPECT_GE(killed, 3);
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(FilesOf(folder_ / "out"), whole);
  EXPECT_FALSE(fs::exists(folder_ / "out.calibration"));
}

TEST_F(QuantizeTest, FilesOfAnotherRunAreNotTakenOver) {
  ops::FailingBackend failing(*backend_);
  failing.LoseAfter(3);
  ASSERT_FALSE(Quantize(Options("int4_awq"), Samples(), failing).ok());
  auto samples = Samples();
  samples.front().front() ^= 1;
  ASSERT_TRUE(Quantize(Options("int4_awq", "expected"), samples, *backend_).ok());
  ASSERT_TRUE(Quantize(Options("int4_awq"), samples, *backend_).ok());
  EXPECT_EQ(FilesOf(folder_ / "out"), FilesOf(folder_ / "expected"));
}

TEST_F(QuantizeTest, ASecondRunIntoTheSameFolderIsRefusedAndTheFirstGoesOn) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  Status second, convert;
  const QuantizeEvents events{.calibrating = [&](double) {
    if (!second.ok()) return Status();
    second = Run(Options("fp8")).status();
    convert = Convert({.model_dir = folder_ / "hf", .output_dir = folder_ / "out"}).status();
    return Status();
  }};
  ASSERT_TRUE(Quantize(Options("int4_awq"), Samples(), *backend_, events).ok());
  for (const Status& status : {second, convert}) {
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr((folder_ / "out").string() + ": another run"));
  }
  EXPECT_EQ(FilesOf(folder_ / "out"), FilesOf(folder_ / "whole"));
}

TEST_F(StoppedQuantizeTest, ARunThatWasKilledWhileItRemovedItsFilesIsBegunAgain) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  StopAfterALayer();
  ASSERT_TRUE(fs::remove(folder_ / "out.calibration" / "hidden-1"));
  const auto report = Run(Options("int4_awq"));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(FilesOf(folder_ / "out"), FilesOf(folder_ / "whole"));
  EXPECT_FALSE(fs::exists(folder_ / "out.calibration"));
}

// A single bit of what is kept would change the result.
TEST_F(StoppedQuantizeTest, ADamagedFileOfCalibrationIsRefusedByNameBeforeItIsUsed) {
  ASSERT_TRUE(Run(Options("int4_awq", "whole")).ok());
  for (const char* name : {"layer-0.safetensors", "hidden-1"}) {
    const fs::path file = folder_ / "out.calibration" / name;
    StopAfterALayer();
    const size_t size = fs::file_size(file);
    // In the header's length, its text, the first tensor and the last.
    for (const size_t at : {size_t{0}, size_t{40}, size / 2, size - 1}) {
      fs::remove_all(folder_ / "out.calibration");
      StopAfterALayer();
      FlipBit(file, at);
      bool began = false;
      const auto report =
          Quantize(Options("int4_awq"), Samples(), *backend_, {.calibrating = [&](double) {
                     began = true;
                     return Status();
                   }});
      ASSERT_FALSE(report.ok()) << name << " " << at;
      EXPECT_EQ(report.status().code(), Code::kDataLoss);
      EXPECT_THAT(report.status().message(), testing::StartsWith(file.string() + ": "));
      EXPECT_THAT(
          report.status().message(),
          testing::EndsWith("; delete the folder " + (folder_ / "out.calibration").string() +
                            " to start calibration over"));
      EXPECT_FALSE(began);
    }
    fs::remove_all(folder_ / "out.calibration");
    ASSERT_TRUE(Run(Options("int4_awq")).ok());
    EXPECT_EQ(FilesOf(folder_ / "out"), FilesOf(folder_ / "whole"));
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(QuantizeTest, AFolderOfSomeoneElseIsLeftAlone) {
  fs::create_directories(folder_ / "out.calibration");
  WriteText(folder_ / "out.calibration" / "thesis.txt", "mine");
  const auto report = Run(Options("fp8"));
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.status().message(), HasSubstr("out.calibration"));
  EXPECT_EQ(*ReadTextFile(folder_ / "out.calibration" / "thesis.txt"), "mine");
}

TEST_F(QuantizeTest, StatesWhatItWillTakeBeforeItBegins) {
  CalibrationEstimate seen;
  bool began = false;
  const QuantizeEvents events{.estimate =
                                  [&](const CalibrationEstimate& estimate) {
                                    EXPECT_FALSE(began);
                                    seen = estimate;
                                  },
                              .calibrating =
                                  [&](double) {
                                    began = true;
                                    return Status();
                                  }};
  ASSERT_TRUE(Quantize(Options("fp8"), Samples(), *backend_, events).ok());
  EXPECT_EQ(seen.rows, 40 + 1 + 77 + 120 + 30);
  EXPECT_EQ(seen.spill_bytes, 2 * seen.rows * 64 * 2);
  EXPECT_GT(seen.memory_bytes, 0);
  EXPECT_TRUE(began);
}

TEST_F(QuantizeTest, KeysAndValuesHaveTheScaleOfTheirLargestMagnitude) {
  QuantizeOptions options = Options("full_prec");
  options.recipe = RecipeOf("full_prec", 128, "fp8").value();
  ASSERT_TRUE(Run(options).ok());
  const auto checkpoint = OpenCheckpoint(folder_ / "out").value();
  EXPECT_EQ(checkpoint->spec().cache_scales, DType::kF8E4M3);
  const Tensor scales = checkpoint->Get({WeightRole::kValue, 1, WeightPart::kCacheScale}).value();
  ASSERT_EQ(scales.shape, (Shape{4}));
  for (int head = 0; head < 4; ++head) EXPECT_GT(scales.As<float>()[head] * 448.0f, 0.1f);
}

// The scales must cover what the written model stores, not what the plain one did: SmoothQuant
// moves the range of values into the weights that read them.
TEST_F(QuantizeTest, ScalesForInt8CoverTheKeysAndValuesOfTheWrittenModel) {
  for (const bool hf : {false, true}) {
    for (const char* qformat : {"full_prec", "int8_sq"}) {
      SCOPED_TRACE(qformat);
      const std::string name = std::string(qformat) + (hf ? "_hf" : "");
      QuantizeOptions options = Options(qformat, name);
      options.recipe = RecipeOf(qformat, 64, "int8").value();
      options.recipe.smooth_alpha = 0.8;
      options.folder = hf ? FolderKind::kHuggingFace : FolderKind::kCheckpoint;
      const auto report = Run(options);
      ASSERT_TRUE(report.ok()) << report.status().message();
      std::unique_ptr<WeightSource> written;
      if (hf) {
        written = HfReader::Open(folder_ / name).value();
      } else {
        written = OpenCheckpoint(folder_ / name).value();
      }
      EXPECT_EQ(written->spec().cache_scales, DType::kI8);
      // By these texts the scales were made: nothing saturates, and the rounding stays small.
      const auto weights = LoadWeights(*written, *backend_, 128).value();
      for (const std::vector<int32_t>& sample : Samples()) {
        const auto logits = [&](std::optional<DType> cache) {
          DecoderTestDriver driver(weights, *backend_, 128, cache);
          return driver.Feed(sample);
        };
        EXPECT_LE(RelativeError(logits(DType::kI8), logits(std::nullopt)), 0.05)
            << sample.size() << " tokens";
      }
    }
  }
}

TEST_F(QuantizeTest, RefusesWhatIsQuantizedAlready) {
  QuantizeOptions first = Options("fp8", "hf8");
  first.folder = FolderKind::kHuggingFace;
  ASSERT_TRUE(Run(first).ok());
  QuantizeOptions again = Options("int8_wo");
  again.model_dir = folder_ / "hf8";
  const auto report = Run(again);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.status().message(), HasSubstr("is quantized already (fp8"));
}

TEST_F(QuantizeTest, RefusesWeightsThatAreNotFinite) {
  std::vector<std::byte> memory;
  kFolder.Write(folder_ / "hf", [&](auto& tensors) {
    Tensor& weight = tensors.at("model.layers.1.mlp.up_proj.weight");
    const auto* from = static_cast<const std::byte*>(weight.data);
    memory.assign(from, from + weight.NumBytes());
    weight.data = memory.data();
    const Tensor element{memory.data() + 5 * SizeOf(weight.dtype), weight.dtype, {1}, {}};
    float odd = NAN;
    ConvertElements({&odd, DType::kF32, {1}, {}}, element);
  });
  for (const char* qformat : {"int8_wo", "int4_wo", "fp8", "int8_sq"}) {
    const auto report = Run(Options(qformat));
    ASSERT_FALSE(report.ok()) << qformat;
    EXPECT_THAT(report.status().message(), HasSubstr("layer 1")) << qformat;
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    fs::remove_all(folder_ / "out.calibration");
  }
}

TEST_F(QuantizeTest, RefusesTokensOutsideOfTheVocabulary) {
  const auto report =
      Quantize(Options("fp8"), std::vector<std::vector<int32_t>>{{1}, {1, 96}}, *backend_);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.status().message(), HasSubstr("token 96 of calibration sample 2"));
}

TEST(RecipeOf, NamesWhatIsNotMade) {
  EXPECT_THAT(RecipeOf("nvfp4", 128, "none").status().message(), HasSubstr("int4_awq"));
  EXPECT_THAT(RecipeOf("fp8", 128, "nvfp4").status().message(), HasSubstr("fp8, int8 or 16 bits"));
  EXPECT_EQ(RecipeOf("fp8", 128, "int8")->cache_scales, DType::kI8);
  EXPECT_THAT(RecipeOf("int4_awq", 96, "none").status().message(), HasSubstr("96"));
}

}  // namespace
}  // namespace tandem
