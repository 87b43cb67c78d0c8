#include "apps/models/quantized_model.h"

#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "apps/cli/version.h"
#include "apps/models/calibration.h"
#include "apps/models/model_content.h"
#include "base/cache_folder.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "engine_folder/source.h"
#include "model/weight_roles.h"
#include "quantize/quantize.h"
#include "quantize/quantized_source.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using Element = QuantScheme::Element;
using Scheme = CalibratedQuantization::Scheme;

constexpr auto kLookAgain = std::chrono::milliseconds(200);
constexpr int64_t kLongestSample = 512;  // tokens
constexpr size_t kKeyDigits = 16;

Element ElementOf(Scheme scheme) {
  switch (scheme) {
    case Scheme::kSmoothQuant:
      return Element::kInt8;
    case Scheme::kAwq:
      return Element::kInt4;
    case Scheme::kFp8:
      break;
  }
  return Element::kFp8E4M3;
}

// One model that is asked for.
struct Asked {
  const fs::path& model;
  const CalibratedQuantization& what;
  const QuantizedModelOptions& where;
  QuantizeRecipe recipe = {};
  std::unique_ptr<HfReader> plain = {};
  fs::path folder = {};  // of the result

  Status Check() const { return where.check ? where.check() : Status(); }
  // "dictionary/target to int4 in groups of 128"
  std::string Describe() const {
    return fmt::format("{} to {}", model.string(), DescribeScheme(recipe.scheme));
  }
};

// Whether the folder is served as it is. An error if its weights are in another form.
Result<bool> IsQuantized(const fs::path& model, const CalibratedQuantization& what,
                         const QuantizedModelOptions& where) {
  TANDEM_ASSIGN_OR_RETURN(const ModelSource source, OpenModel(model, std::nullopt, where.config));
  const std::string_view name = SchemeName(what.scheme);
  const std::string described = DescribeFormat({source.spec().dtype, source.spec().quantization});
  if (source.kind != ModelSource::Kind::kHuggingFace) {
    LogWarning("--quantize {}: has no effect on {}, which is {} with weights in {}", name,
               model.string(),
               source.kind == ModelSource::Kind::kEngine ? "an engine" : "a checkpoint", described);
    return true;
  }
  const ModelSpec& spec = source.spec();
  if (spec.quantization.is_plain() && spec.exceptions.empty()) return false;
  if (spec.quantization.element == ElementOf(what.scheme)) {
    LogInfo("--quantize {}: {} is quantized already ({}) and served as it is", name, model.string(),
            described);
    return true;
  }
  return InvalidArgument(fmt::format(
      "--quantize {}: {} is quantized already, in {}; leave --quantize out, or name the model that "
      "it was made from",
      name, model.string(), described));
}

// What decides the bytes of the result, but for the machine: kernels differ in the last bits.
Result<std::string> KeyOf(const Asked& asked) {
  std::string text = Version() + "\n" + SpecToJson(asked.plain->spec()) + "\n";
  for (const fs::path& folder : {asked.model, asked.where.tokenizer_dir}) {
    if (folder.empty()) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string content, ContentOf(folder));
    text += content + "\n";
  }
  std::error_code ignored;
  if (fs::is_regular_file(asked.where.calib_dataset, ignored)) {
    TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(asked.where.calib_dataset));
    text += Checksum(file->bytes()) + "\n";
  }
  text += fmt::format("{} scales {} alpha {} samples {} by {}", DescribeScheme(asked.recipe.scheme),
                      static_cast<int>(asked.recipe.input_scales), asked.recipe.smooth_alpha,
                      asked.what.calib_size, asked.what.calib_batch_size);
  text += fmt::format(" inputs {}", static_cast<int>(asked.recipe.scheme.inputs));
  return Checksum(std::as_bytes(std::span(text))).substr(0, kKeyDigits);
}

Result<Asked> Ask(const fs::path& model, const CalibratedQuantization& what,
                  const QuantizedModelOptions& where) {
  Asked asked{.model = model, .what = what, .where = where};
  TANDEM_ASSIGN_OR_RETURN(asked.recipe, RecipeOf(what));
  TANDEM_ASSIGN_OR_RETURN(asked.plain, OpenAsDType(model, where.dtype, where.config));
  fs::path cache = where.cache_dir;
  if (cache.empty()) {
    TANDEM_ASSIGN_OR_RETURN(cache, CacheFolder());
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string key, KeyOf(asked));
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(model, ignored);
  asked.folder = cache / "quantized" /
                 fmt::format("{}-{}-{}", whole.filename().string(), SchemeName(what.scheme), key);
  return asked;
}

// Why a result that exists is not the one that was written; OK if it is. Everything but the weights
// follows from what was asked for, so it is compared byte by byte. Of the weights, whose bytes are
// too many to read at each start, the headers and the lengths are checked.
Status CheckKept(const Asked& asked) {
  TANDEM_RETURN_IF_ERROR(OpenCheckpoint(asked.folder).status());
  const ModelSpec spec = QuantizedSpec(asked.plain->spec(), asked.recipe);
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(asked.folder / kConfigFile));
  const fs::path& tokenizer =
      asked.where.tokenizer_dir.empty() ? asked.model : asked.where.tokenizer_dir;
  const std::string changed = config != CheckpointConfigToJson({.spec = spec, .sharding = {}})
                                  ? std::string(kConfigFile)
                                  : ChangedSideFile(asked.model, tokenizer, asked.folder);
  return changed.empty() ? Status() : DataLoss(changed + " is not the file that was written");
}

// Not a missing one, nor one that was damaged since it was made.
bool IsWhole(const Asked& asked) {
  std::error_code ignored;
  if (!fs::exists(asked.folder, ignored)) return false;
  const Status kept = CheckKept(asked);
  if (kept.ok()) return true;
  LogWarning("{}: cannot be used ({}) and is made again", asked.folder.string(), kept.message());
  return false;
}

// The lock under which one process makes the folder.
Result<std::unique_ptr<FileLock>> WaitForTurn(const Asked& asked) {
  const fs::path name = asked.folder.string() + ".lock";
  for (bool told = false;; told = true) {
    auto lock = FileLock::Take(name);
    if (lock.status().code() != Code::kUnavailable) return lock;
    if (!told) {
      LogWarning("another process is quantizing {}; waiting until it is done ({} is locked)",
                 asked.Describe(), name.string());
    }
    TANDEM_RETURN_IF_ERROR(asked.Check());
    std::this_thread::sleep_for(kLookAgain);
  }
}

Status MakeParent(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (!error) return {};
  return FailedPrecondition(
      fmt::format("{}: cannot create the folder in which quantized models are kept: {}; name "
                  "another one with DJL_CACHE_DIR or XDG_CACHE_HOME",
                  folder.parent_path().string(), error.message()));
}

// The result, and what calibration keeps until it is written: hidden states before and after a
// layer.
Status CheckRoom(const Asked& asked) {
  const ModelSpec spec = QuantizedSpec(asked.plain->spec(), asked.recipe);
  const int64_t rows =
      asked.what.calib_size * std::min<int64_t>(kLongestSample, spec.max_positions);
  const int64_t bytes = StoredBytes(spec) + 2 * rows * HiddenRowBytes(spec);
  const fs::path disk = asked.folder.parent_path();
  int64_t free = 0;
  if (asked.where.free_bytes) {
    free = asked.where.free_bytes(disk);
  } else {
    std::error_code error;
    const fs::space_info space = fs::space(disk, error);
    if (error) return {};  // then writing will tell
    free = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
  }
  if (free >= bytes) return {};
  return ResourceExhausted(fmt::format(
      "{}: quantizing {} needs {}, and the disk has {} left; make room (older models there may be "
      "deleted), or name another folder with DJL_CACHE_DIR or XDG_CACHE_HOME",
      disk.string(), asked.Describe(), FormatBytes(bytes), FormatBytes(free)));
}

Status Make(const Asked& asked) {
  const QuantizedModelOptions& where = asked.where;
  TANDEM_RETURN_IF_ERROR(CheckRoom(asked));
  std::error_code ignored;
  fs::remove_all(asked.folder, ignored);  // a damaged one: the cache is ours
  const CalibrationOptions calibration{.tokenizer_dir = where.tokenizer_dir,
                                       .dataset = where.calib_dataset,
                                       .size = asked.what.calib_size,
                                       .longest = kLongestSample,
                                       .batch_size = asked.what.calib_batch_size};
  TANDEM_ASSIGN_OR_RETURN(const CalibrationTexts texts,
                          ReadCalibrationTexts(asked.model, calibration, where.config));
  TANDEM_ASSIGN_OR_RETURN(const auto backend, MakeBackend(where.backend));
  const auto told = [&asked](std::string what) {
    return [&asked, what = std::move(what)](double done) {
      if (asked.where.console != nullptr) asked.where.console->Progress(what, done);
      return asked.Check();
    };
  };
  const QuantizeEvents events{
      .estimate =
          [&](const CalibrationEstimate& estimate) {
            LogWarning(
                "quantizing {} with {} samples of {}, once: about {:.0f} s, {} of memory; kept in "
                "{}",
                asked.Describe(), texts.samples.size(), texts.origin, estimate.seconds,
                FormatBytes(estimate.memory_bytes), asked.folder.string());
          },
      .calibrating = told("calibrating"),
      .writing = told("writing")};
  const auto report = Quantize({.model_dir = asked.model,
                                .output_dir = asked.folder,
                                .config = where.config,
                                .tokenizer_dir = where.tokenizer_dir,
                                .dtype = where.dtype,
                                .recipe = asked.recipe,
                                .batch_samples = asked.what.calib_batch_size,
                                .num_threads = where.backend.cpu.num_threads},
                               texts.samples, *backend, events);
  return report.status();
}

}  // namespace

std::string_view SchemeName(Scheme scheme) {
  switch (scheme) {
    case Scheme::kSmoothQuant:
      return "smoothquant";
    case Scheme::kAwq:
      return "awq";
    case Scheme::kFp8:
      break;
  }
  return "fp8";
}

Result<QuantizeRecipe> RecipeOf(const CalibratedQuantization& what) {
  if (what.calib_size < 1) {
    return InvalidArgument("calib_size: there must be a sample to calibrate with")
        .WithField("calib_size");
  }
  if (what.calib_batch_size < 0) {
    return InvalidArgument("calib_batch_size: must not be negative").WithField("calib_batch_size");
  }
  switch (what.scheme) {
    case Scheme::kSmoothQuant: {
      if (!(what.alpha >= 0.0 && what.alpha <= 1.0)) {
        return InvalidArgument(
                   fmt::format("smoothquant_alpha: must be from 0 to 1; it is {}", what.alpha))
            .WithField("smoothquant_alpha");
      }
      TANDEM_ASSIGN_OR_RETURN(QuantizeRecipe recipe, tandem::RecipeOf("int8_sq", 0, "none"));
      recipe.smooth_alpha = what.alpha;
      if (what.per_token) recipe.scheme.inputs = QuantScheme::Inputs::kDynamic;
      return recipe;
    }
    case Scheme::kAwq: {
      if (what.awq_format != "int4_awq" && what.awq_format != "w4a8_awq") {
        return InvalidArgument("awq_format: is \"" + what.awq_format +
                               "\"; there are int4_awq and w4a8_awq")
            .WithField("awq_format");
      }
      auto recipe = tandem::RecipeOf(what.awq_format, what.block_size, "none");
      return recipe.ok() ? recipe : recipe.status().WithField("awq_block_size");
    }
    case Scheme::kFp8:
      break;
  }
  return tandem::RecipeOf("fp8", 0, "none");
}

Result<fs::path> QuantizedFolder(const fs::path& model_folder, const CalibratedQuantization& what,
                                 const QuantizedModelOptions& where) {
  TANDEM_ASSIGN_OR_RETURN(const Asked asked, Ask(model_folder, what, where));
  return asked.folder;
}

Result<fs::path> QuantizedModel(const fs::path& model_folder, const CalibratedQuantization& what,
                                const QuantizedModelOptions& where) {
  TANDEM_ASSIGN_OR_RETURN(const bool is_quantized, IsQuantized(model_folder, what, where));
  if (is_quantized) return model_folder;
  TANDEM_ASSIGN_OR_RETURN(const Asked asked, Ask(model_folder, what, where));
  const std::string option = fmt::format("--quantize {}", SchemeName(what.scheme));
  if (!IsWhole(asked)) {
    if (where.only_kept) {
      return FailedPrecondition(
          fmt::format("{}: {} has not been quantized so yet; `tandem serve` and `tandem run` do it",
                      option, model_folder.string()));
    }
    TANDEM_RETURN_IF_ERROR(MakeParent(asked.folder));
    TANDEM_ASSIGN_OR_RETURN(const auto lock, WaitForTurn(asked));
    // Another process may have made it meanwhile.
    if (!IsWhole(asked)) {
      const Status made = Make(asked);
      if (!made.ok()) return made.Annotate(option);
      return asked.folder;
    }
  }
  LogInfo("{} was quantized before: {}", asked.Describe(), asked.folder.string());
  return asked.folder;
}

}  // namespace tandem::apps
