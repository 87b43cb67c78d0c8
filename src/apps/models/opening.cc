#include "apps/models/opening.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "apps/models/artifact.h"
#include "apps/models/config_rows.h"
#include "apps/models/find_processes.h"
#include "apps/models/load_quantization.h"
#include "apps/models/local_model.h"
#include "apps/models/quantized_model.h"
#include "apps/models/rank_choice.h"
#include "base/cores.h"
#include "base/log.h"
#include "runtime/cache/model_index.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

bool IsPairFolder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::is_directory(folder / "target", ignored);
}

std::filesystem::path ExecutableFolder() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return {};
  return std::filesystem::path(std::string(path.data(), static_cast<size_t>(length))).parent_path();
}

Opened WithName(ModelSource source, std::string name) {
  Opened opened;
  opened.model = {
      .name = std::move(name), .path = {}, .folder = source.tokenizer_dir, .spec = source.spec()};
  opened.source = std::move(source);
  return opened;
}

std::filesystem::path WholePath(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path : canonical;
}

// "dictionary/target": the last folder alone is often a role or a version.
std::string NameOf(const std::filesystem::path& path) {
  const std::filesystem::path whole = WholePath(path);
  return (whole.parent_path().filename() / whole.filename()).string();
}

Result<Opened> OpenFolder(const std::filesystem::path& path, const std::string& name,
                          std::optional<DType> dtype, const ConfigOptions& config) {
  TANDEM_ASSIGN_OR_RETURN(ModelSource source, OpenModel(path, dtype, config));
  Opened opened = WithName(std::move(source), name);
  opened.model.path = WholePath(path);
  return opened;
}

Result<Opened> OpenShape(const std::filesystem::path& path, const DummyOptions& options,
                         const ConfigOptions& config) {
  TANDEM_ASSIGN_OR_RETURN(ModelSource source, OpenDummy(path, options, config));
  Opened opened = WithName(std::move(source), "dummy " + path.stem().string());
  opened.model.map.emplace(options, opened.model.spec.vocab_size);
  opened.dummy = options;
  return opened;
}

DummyOptions MakeDummyOptions(const SessionOptions& options, ops::Backend& backend,
                              double agreement) {
  return {
      .agreement = agreement, .num_threads = options.backend.cpu.num_threads, .backend = &backend};
}

}  // namespace

const BoundOptions<FolderOptions>& FolderOptionRows() {
  static const BoundOptions<FolderOptions> rows({
      BindChoice<FolderOptions, &FolderOptions::dtype>(
          {.name = "dtype",
           .meaning =
               "Type that Hugging Face folders are computed in, target and draft; auto: each "
               "in its own. Checkpoints and engines have theirs",
           .group = "Models"},
          {{"auto", std::nullopt},
           {"float16", DType::kF16},
           {"bfloat16", DType::kBF16},
           {"float32", DType::kF32}}),
  });
  return rows;
}

Result<std::filesystem::path> EmbeddedPairFolder() {
  const std::filesystem::path shipped =
      ExecutableFolder().parent_path() / "share" / "tandem" / "models" / "dictionary";
  if (IsPairFolder(shipped)) return shipped;
  const std::filesystem::path source = std::filesystem::path(TANDEM_SOURCE_MODELS) / "dictionary";
  if (IsPairFolder(source)) return source;
  return NotFound("the embedded pair is neither in " + shipped.string() + " nor in " +
                  source.string());
}

Result<Opened> OpenDummyDraft(const SessionOptions& options, double acceptance,
                              const ModelSpec& target, ops::Backend& backend) {
  TANDEM_ASSIGN_OR_RETURN(Opened draft, OpenShape(options.models.draft_dummy,
                                                  MakeDummyOptions(options, backend, acceptance),
                                                  options.models.config.OfDraft()));
  if (target.vocab_size != draft.model.spec.vocab_size) {
    return InvalidArgument(
        fmt::format("--draft_dummy: its vocabulary of {} tokens is not the target's of {}",
                    draft.model.spec.vocab_size, target.vocab_size));
  }
  return draft;
}

namespace {

bool WithoutDraft(const SessionOptions& options) {
  return options.engine.draft_mode == DraftMode::kOff;
}

Result<OpenedPair> OpenDummyPair(const SessionOptions& options, ops::Backend& backend) {
  const ModelOptions& models = options.models;
  OpenedPair pair;
  TANDEM_ASSIGN_OR_RETURN(
      pair.target, OpenShape(models.dummy, MakeDummyOptions(options, backend, 1.0), models.config));
  if (models.draft_dummy.empty() || WithoutDraft(options)) return pair;
  TANDEM_ASSIGN_OR_RETURN(
      Opened draft, OpenDummyDraft(options, models.acceptance, pair.target.model.spec, backend));
  pair.draft = std::make_unique<Opened>(std::move(draft));
  return pair;
}

// Models as they were asked for, where that was no folder.
struct ModelNames {
  std::string target;
  std::string draft;
};

// Replaces what is to be downloaded or unpacked by folders.
Result<ModelNames> FetchModels(const OptionValues& values, SessionOptions& options,
                               const std::function<Status()>& check) {
  ModelOptions& models = options.models;
  ModelNames names;
  const auto fetch = [&](std::filesystem::path& model, std::string& name) -> Status {
    TANDEM_ASSIGN_OR_RETURN(std::filesystem::path folder, LocalModel(model, values, check));
    if (folder != model) name = model.string();
    model = std::move(folder);
    return {};
  };
  TANDEM_RETURN_IF_ERROR(fetch(models.target, names.target));
  if (!WithoutDraft(options)) TANDEM_RETURN_IF_ERROR(fetch(models.draft, names.draft));
  TANDEM_ASSIGN_OR_RETURN(models.tokenizer_dir,
                          LocalTokenizer(models.tokenizer_dir, values, check));
  return names;
}

// The folders of a pair. `opened`: that of the target, which for an artifact and for a model that
// is quantized at load is another one than the named one.
struct PairFolders {
  std::filesystem::path target;
  std::filesystem::path opened;
  std::filesystem::path draft;                    // empty without one
  std::string target_name = {}, draft_name = {};  // for people
  bool embedded = false;
};

// Quantizes the target if that is asked for and was not done before; without a console, which tells
// of it, that is an error. Nothing for a dummy.
Result<PairFolders> FindFolders(const SessionOptions& options, const ModelNames& names,
                                const LoadQuantization& load, std::optional<DType> dtype,
                                const Console* console, const std::function<Status()>& check) {
  const ModelOptions& models = options.models;
  PairFolders folders{.target = models.target, .opened = {}, .draft = models.draft};
  const std::optional<CalibratedQuantization> quantization = load.Asked();
  if (quantization && models.quantize) {
    return InvalidArgument(
        "--quantize, --weights: both say how weights are quantized; leave out one of the two");
  }
  if (!models.dummy.empty()) {
    if (!quantization) return folders;
    return InvalidArgument(
        "--quantize: a dummy has no weights to calibrate; --weights rounds them");
  }
  if (models.target.empty()) {
    if (!models.draft.empty()) return InvalidArgument("--draft: names a draft without a target");
    TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path pair, EmbeddedPairFolder());
    folders.target = pair / "target";
    folders.draft = pair / "draft";
    folders.embedded = true;
  }
  folders.target_name = names.target.empty() ? NameOf(folders.target) : names.target;
  folders.draft_name = names.draft.empty() ? NameOf(folders.draft) : names.draft;
  TANDEM_ASSIGN_OR_RETURN(folders.opened, EngineOfArtifact(folders.target));
  if (!folders.draft.empty()) {
    TANDEM_ASSIGN_OR_RETURN(folders.draft, EngineOfArtifact(folders.draft));
  }
  if (!quantization) return folders;
  TANDEM_ASSIGN_OR_RETURN(folders.opened,
                          QuantizedModel(folders.opened, *quantization,
                                         {.tokenizer_dir = models.tokenizer_dir,
                                          .config = models.config,
                                          .dtype = dtype ? std::string(DTypeName(*dtype)) : "auto",
                                          .calib_dataset = load.calib_dataset,
                                          .only_kept = console == nullptr,
                                          .backend = options.backend,
                                          .console = console,
                                          .check = check}));
  return folders;
}

// Nothing for a dummy, which a backend makes.
Result<OpenedPair> OpenPair(const SessionOptions& options, const PairFolders& folders,
                            std::optional<DType> dtype) {
  if (!options.models.dummy.empty()) return OpenedPair{};
  const std::filesystem::path& draft = folders.draft;
  OpenedPair pair;
  pair.embedded = folders.embedded;
  TANDEM_ASSIGN_OR_RETURN(
      pair.target, OpenFolder(folders.opened, folders.target_name, dtype, options.models.config));
  if (!draft.empty() && !WithoutDraft(options)) {
    TANDEM_ASSIGN_OR_RETURN(Opened opened, OpenFolder(draft, folders.draft_name, dtype,
                                                      options.models.config.OfDraft()));
    pair.draft = std::make_unique<Opened>(std::move(opened));
  }
  return pair;
}

// An engine folder's limits apply to the options; a warning says when an option is lowered. An
// engine may have been built for more positions than its model has.
void ApplyLimits(const OptionValues& values, const BuildLimits& limits, const ModelSpec& spec,
                 EngineOptions& engine) {
  const auto bound = [&]<auto kField>(int64_t limit) {
    const OptionSpec& row = EngineOptionRows().RowOf<kField>();
    int32_t& value = engine.*kField;
    const auto narrow = static_cast<int32_t>(std::min<int64_t>(limit, INT32_MAX));
    if (narrow <= 0 || (value > 0 && value <= narrow)) return;
    if (values.IsSet(row) && value > narrow) {
      LogWarning("--{} {}: the engine was built for {}, which is used", row.name, value, narrow);
    }
    value = narrow;
  };
  bound.operator()<&EngineOptions::max_batch_size>(limits.max_batch_size);
  bound.operator()<&EngineOptions::max_num_tokens>(limits.max_num_tokens);
  bound.operator()<&EngineOptions::max_seq_len>(std::min(limits.max_seq_len, spec.max_positions));
  bound.operator()<&EngineOptions::max_input_len>(limits.max_input_len);
  bound.operator()<&EngineOptions::max_draft_len>(limits.max_draft_len);
  if (!values.IsSet(EngineOptionRows().RowOf<&EngineOptions::kv_cache_dtype>())) {
    engine.kv_cache_dtype = limits.kv_cache_dtype;
  }
  // A draft length that is asked for is one option and sets more than that limit.
  if (limits.max_draft_len > 0 && engine.fixed_draft_len > limits.max_draft_len) {
    LogWarning("--draft_len {}: the engine was built for {}, which is used", engine.fixed_draft_len,
               limits.max_draft_len);
    engine.fixed_draft_len = static_cast<int32_t>(limits.max_draft_len);
  }
}

// A prompt leaves room for one token of output; a warning says when an option asks for more.
void BoundInput(const OptionValues& values, const ModelSpec& spec, EngineOptions& engine) {
  const int64_t longest = PositionsOf(spec, engine);
  if (engine.max_input_len < longest) return;
  if (const OptionSpec& row = EngineOptionRows().RowOf<&EngineOptions::max_input_len>();
      values.IsSet(row)) {
    LogWarning("--{} {}: a sequence has at most {} tokens, so a prompt has at most {}", row.name,
               engine.max_input_len, longest, longest - 1);
  }
  engine.max_input_len = static_cast<int32_t>(longest - 1);
}

// How many ranks there are.
Result<RankChoice> ChooseRanksOf(const Opened& target, const SessionOptions& options) {
  const RankOptions& ranks = options.ranks;
  const bool is_dummy = target.source.weights == nullptr;
  RankFacts facts = {.built = target.source.sharding,
                     .spec = is_dummy ? nullptr : &target.source.spec()};
  if (ranks.target == 0) {
    TANDEM_ASSIGN_OR_RETURN(facts.places, NumPlaces(options.backend));
    facts.on_cpu = IsOnCpu(options.backend);
  }
  return ChooseRanks(ranks, facts);
}

// The devices that are named for the draft, if there is one.
Status ListDraftDevices(SessionOptions& options) {
  const std::string& asked = options.ranks.draft_device;
  if (asked.empty()) return {};
  const OptionSpec& row = RankOptionRows().RowOf<&RankOptions::draft_device>();
  if (!options.models.NamesDraft() || WithoutDraft(options)) {
    LogWarning("--{} {}: has no effect without a draft", row.name, asked);
    return {};
  }
  TANDEM_ASSIGN_OR_RETURN(options.ranks.draft_devices, ListDevices(asked, row.name));
  if (asked == "auto") {
    return InvalidArgument(fmt::format(
        "--{} auto: name the device; without the option the draft is beside the target", row.name));
  }
  if (options.ranks.draft_devices.front() == "cpu") return {};
  return GpusOf(options.ranks.draft_devices, row.name).status();
}

// Whether all processes opened the same models, in the same formats.
Status CompareModels(const Opening& opening) {
  const RankProcesses& processes = opening.processes->peers;
  std::string text = opening.options.backend.cuda.batch_invariant ? "batch-invariant " : "";
  const auto add = [&](const Opened& opened, ModelIndex index) -> Status {
    const AskedFormat format = FormatOf(opening.options, index);
    text += SpecToJson(opened.model.spec);
    for (const auto& scheme : {format.layers, format.head}) {
      text += scheme ? fmt::format("{} {} {} ", static_cast<int>(scheme->element),
                                   scheme->block_rows, scheme->block_columns)
                     : "as stored ";
    }
    if (opened.model.path.empty()) return {};
    TANDEM_ASSIGN_OR_RETURN(const std::string sample, SampleModel(opened.model.path));
    text += sample;
    return {};
  };
  TANDEM_RETURN_IF_ERROR(add(opening.pair.target, ModelIndex::kTarget));
  if (opening.pair.draft) TANDEM_RETURN_IF_ERROR(add(*opening.pair.draft, ModelIndex::kDraft));
  return AgreeOnText(text,
                     "the processes of the model have other models, or load them in other formats: "
                     "give all of them the same files and the same command line",
                     processes);
}

// Makes the backends of the ranks, of which there is one where nobody asked for more and the GPUs
// cannot work together.
Status OpenRanks(RankChoice choice, SharedDevices& devices, Opening& opening) {
  SessionOptions& options = opening.options;
  options.ranks.target = choice.ranks;
  TANDEM_RETURN_IF_ERROR(PlaceDraft(options.backend, options.ranks));
  TANDEM_RETURN_IF_ERROR(CheckDraftPlaces(options.backend, options.replicas, options.ranks));
  TANDEM_ASSIGN_OR_RETURN(opening.backends, MakeReplicaBackends(options.backend, options.replicas,
                                                                options.ranks, devices));
  opening.backend = opening.backends.front().front();
  if (choice.by_default && choice.ranks > 1 && options.ranks.stages == 1 &&
      options.ranks.num_own_draft() == 0) {
    if (const auto together = MakeCommunicators(opening.backends.front(), {}); !together.ok()) {
      choice.warning = fmt::format("the model runs on one rank, not on {}: {}", choice.ranks,
                                   together.status().message());
      if (options.ranks.draft_first != RankLayout::kOnEach) {
        choice.warning += "; the draft is beside it";
      }
      choice.why.clear();
      options.ranks.target = 1;
      options.ranks.draft_first = static_cast<int32_t>(RankLayout::kOnEach);
      for (auto& ranks : opening.backends) ranks.resize(1);
    }
  }
  const std::string& name = opening.pair.target.model.name;  // a dummy has none yet
  const std::string of = name.empty() ? name : name + ": ";
  if (!choice.why.empty()) LogInfo("{}{}", of, choice.why);
  if (!choice.warning.empty()) LogWarning("{}{}", of, choice.warning);
  opening.ranks_why = std::move(choice.why);
  return {};
}

}  // namespace

Result<Opening> Open(const OptionValues& values, SharedResources& shared, const Console* console,
                     const std::function<void(EngineOptions&)>& adjust) {
  Opening opening;
  SessionOptions& options = opening.options;
  options.models = ModelOptionRows().Read(values);
  options.models.config = ConfigOptionRows().Read(values);
  const std::optional<DType> dtype = FolderOptionRows().Read(values).dtype;
  const LoadQuantization load = LoadQuantizationRows().Read(values);
  NameIdleQuantization(values, load);
  options.backend = BackendOptionRows().Read(values);
  options.replicas = ReplicaOptionRows().Read(values);
  options.engine = EngineOptionsFrom(values);  // again once the device is known
  options.ranks = RankOptionRows().Read(values);
  TANDEM_RETURN_IF_ERROR(ListDraftDevices(options));
  TANDEM_RETURN_IF_ERROR(CheckThreads(options.backend));
  TANDEM_ASSIGN_OR_RETURN(opening.processes,
                          FindProcesses(values, console != nullptr, options, shared));
  if (opening.processes != nullptr && opening.processes->waits()) return opening;
  TANDEM_ASSIGN_OR_RETURN(options.ranks.devices, DevicesOf(options.backend));
  TANDEM_RETURN_IF_ERROR(ShareDevices(options.ranks, options.replicas));
  options.backend.device = options.ranks.devices.front();
  // Before there is a backend: quantizing needs the memory and the threads of its own.
  TANDEM_ASSIGN_OR_RETURN(const ModelNames names, FetchModels(values, options, shared.check));
  TANDEM_ASSIGN_OR_RETURN(const PairFolders folders,
                          FindFolders(options, names, load, dtype, console, shared.check));
  TANDEM_ASSIGN_OR_RETURN(opening.pair, OpenPair(options, folders, dtype));
  TANDEM_ASSIGN_OR_RETURN(RankChoice ranks, ChooseRanksOf(opening.pair.target, options));
  TANDEM_RETURN_IF_ERROR(OpenRanks(std::move(ranks), shared.devices, opening));
  const bool on_gpu = opening.backend->device().kind != Device::Kind::kCpu;
  options.engine = EngineOptionsFrom(values, on_gpu);
  if (!options.models.dummy.empty()) {
    TANDEM_ASSIGN_OR_RETURN(opening.pair, OpenDummyPair(options, *opening.backend));
  }
  if (opening.processes != nullptr && opening.processes->shares_engine()) {
    TANDEM_RETURN_IF_ERROR(CompareModels(opening));
  }
  if (adjust) adjust(options.engine);
  const std::optional<BuildLimits>& limits = opening.pair.target.source.limits;
  const ModelSpec& spec = opening.pair.target.model.spec;
  if (limits) ApplyLimits(values, *limits, spec, options.engine);
  if (options.engine.max_seq_len == 0 && spec.DefaultPositions() < spec.max_positions) {
    LogWarning(
        "the model was trained for {} positions and scales them dynamically up to {}: {} are "
        "served, without scaling; a larger --max_seq_len scales the positions of all prompts",
        spec.DefaultPositions(), spec.max_positions, spec.DefaultPositions());
  }
  BoundInput(values, spec, options.engine);
  return opening;
}

}  // namespace tandem::apps
