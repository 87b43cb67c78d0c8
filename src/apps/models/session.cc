#include "apps/models/session.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "apps/models/artifact.h"
#include "apps/models/config_rows.h"
#include "apps/models/load_model.h"
#include "apps/models/load_quantization.h"
#include "apps/models/local_model.h"
#include "apps/models/quantized_model.h"
#include "apps/models/rank_choice.h"
#include "base/log.h"
#include "runtime/cache/model_index.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

// How Hugging Face folders are read.
struct FolderOptions {
  std::optional<DType> dtype;  // of the arithmetic; else their own
};

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

struct OpenedPair {
  Opened target;
  std::unique_ptr<Opened> draft;
  bool embedded = false;
};

DummyOptions MakeDummyOptions(const SessionOptions& options, ops::Backend& backend,
                              double agreement) {
  return {
      .agreement = agreement, .num_threads = options.backend.cpu.num_threads, .backend = &backend};
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

// Of a rank, whose part of the model is `spec`.
Result<ModelMemory> MemoryOf(const SessionOptions& options, const ModelSpec& spec, ModelIndex index,
                             ops::Backend& backend) {
  const AskedFormat kept = FormatOf(options, index);
  const Status loadable = CheckLoadable(spec, backend, kept);
  if ((kept.layers || kept.head) && loadable.code() == Code::kUnimplemented) {
    return Unimplemented(loadable.message() + ": leave out --weights and --head_weights");
  }
  TANDEM_RETURN_IF_ERROR(loadable);
  const int64_t positions = PositionsOf(spec, options.engine);
  return ModelMemory{.spec = &spec,
                     .weight_bytes = WeightBytes(spec, backend, positions, kept),
                     .max_positions = positions};
}

// How many ranks there are.
Result<RankChoice> ChooseRanksOf(const Opened& target, const SessionOptions& options) {
  const RankOptions& ranks = options.ranks;
  const bool is_dummy = target.source.weights == nullptr;
  RankFacts facts = {.built = target.source.sharding,
                     .spec = is_dummy ? nullptr : &target.source.spec()};
  if (ranks.target == 0) {
    // Asking for the GPUs is the first that is done with them.
    if (facts.built.tp_size > 1) PrepareForRanks({.target = 2});
    TANDEM_ASSIGN_OR_RETURN(facts.places, NumPlaces(options.backend));
    facts.on_cpu = IsOnCpu(options.backend);
  }
  return ChooseRanks(ranks, facts);
}

// The parts of a session; nothing is loaded yet.
struct Opening {
  SessionOptions options;
  std::shared_ptr<ops::Backend> backend;
  std::vector<std::shared_ptr<ops::Backend>> backends;  // of all ranks, that one first
  OpenedPair pair;
  std::string ranks_why;  // as RankChoice::why
};

// Makes the backends of the ranks, of which there is one where nobody asked for more and the GPUs
// cannot work together.
Status OpenRanks(RankChoice choice, SharedDevices& devices, Opening& opening) {
  SessionOptions& options = opening.options;
  options.ranks.target = choice.ranks;
  TANDEM_ASSIGN_OR_RETURN(opening.backend,
                          devices.BackendFor(BackendOfRank(options.backend, options.ranks, 0)));
  TANDEM_ASSIGN_OR_RETURN(opening.backends,
                          MakeRankBackends(options.backend, options.ranks, opening.backend));
  if (choice.by_default && opening.backends.size() > 1) {
    if (const auto together = MakeCommunicators(opening.backends); !together.ok()) {
      choice.warning = fmt::format("the model runs on one rank, not on {}: {}", choice.ranks,
                                   together.status().message());
      choice.why.clear();
      options.ranks.target = 1;
      opening.backends.resize(1);
    }
  }
  const std::string& name = opening.pair.target.model.name;  // a dummy has none yet
  const std::string of = name.empty() ? name : name + ": ";
  if (!choice.why.empty()) LogInfo("{}{}", of, choice.why);
  if (!choice.warning.empty()) LogWarning("{}{}", of, choice.warning);
  opening.ranks_why = std::move(choice.why);
  return {};
}

// `console`: as FindFolders.
Result<Opening> Open(const OptionValues& values, SharedResources& shared, const Console* console,
                     const std::function<void(EngineOptions&)>& adjust = {}) {
  Opening opening;
  SessionOptions& options = opening.options;
  options.models = ModelOptionRows().Read(values);
  options.models.config = ConfigOptionRows().Read(values);
  const std::optional<DType> dtype = FolderOptionRows().Read(values).dtype;
  const LoadQuantization load = LoadQuantizationRows().Read(values);
  NameIdleQuantization(values, load);
  options.backend = BackendOptionRows().Read(values);
  options.ranks = RankOptionRows().Read(values);
  TANDEM_RETURN_IF_ERROR(CheckThreads(options.backend));
  TANDEM_ASSIGN_OR_RETURN(options.ranks.devices, DevicesOf(options.backend));
  options.backend.device = options.ranks.devices.front();
  PrepareForRanks(options.ranks);
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

Result<EnginePlan> PlanOf(const Opening& opening, const WeightStore& store) {
  ops::Backend& backend = *opening.backend;
  const SessionOptions& options = opening.options;
  const OpenedPair& pair = opening.pair;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ModelSpec> target_parts,
                          TargetParts(pair.target.model.spec, options.ranks));
  TANDEM_ASSIGN_OR_RETURN(const ModelMemory target,
                          MemoryOf(options, target_parts.front(), ModelIndex::kTarget, backend));
  std::vector<ModelSpec> draft_parts;
  ModelMemory draft;
  if (pair.draft) {
    TANDEM_ASSIGN_OR_RETURN(draft_parts, DraftParts(pair.draft->model.spec, options.ranks));
    TANDEM_ASSIGN_OR_RETURN(draft,
                            MemoryOf(options, draft_parts.front(), ModelIndex::kDraft, backend));
  }
  const auto bytes_to_load = [&](const Opened& opened, const std::vector<ModelSpec>& parts,
                                 ModelIndex index, const ModelMemory& memory) {
    const std::string key = StoreKeyOf(options, opened, parts.front(), index, backend);
    const auto found = store.Find(key, memory.max_positions);
    return found == nullptr ? memory.weight_bytes : 0;
  };
  int64_t weight_bytes = bytes_to_load(pair.target, target_parts, ModelIndex::kTarget, target);
  if (pair.draft) {
    weight_bytes += bytes_to_load(*pair.draft, draft_parts, ModelIndex::kDraft, draft);
  }
  // Ranks on the CPU share its memory; of several GPUs the fullest counts.
  int64_t free_bytes = backend.FreeBytes();
  for (const auto& rank : opening.backends) free_bytes = std::min(free_bytes, rank->FreeBytes());
  if (backend.device().kind == Device::Kind::kCpu) free_bytes /= options.ranks.target;
  if (weight_bytes > free_bytes) {
    return FailedPrecondition(fmt::format("the weights need {}, {} are free",
                                          FormatBytes(weight_bytes), FormatBytes(free_bytes)));
  }
  TANDEM_ASSIGN_OR_RETURN(EnginePlan plan, PlanEngine(options.engine, target, draft, backend,
                                                      free_bytes - weight_bytes));
  NoteRanks(options.ranks.target, plan.memory);
  return plan;
}

// Of each of several ranks; nothing for one.
Result<std::vector<RankMemory>> MemoryOfRanks(const Opening& opening, const MemoryPlan& plan) {
  const SessionOptions& options = opening.options;
  std::vector<RankMemory> ranks;
  if (opening.backends.size() == 1) return ranks;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ModelSpec> target_parts,
                          TargetParts(opening.pair.target.model.spec, options.ranks));
  std::vector<ModelSpec> draft_parts;
  if (opening.pair.draft) {
    TANDEM_ASSIGN_OR_RETURN(draft_parts, DraftParts(opening.pair.draft->model.spec, options.ranks));
  }
  for (size_t rank = 0; rank < opening.backends.size(); ++rank) {
    ops::Backend& backend = *opening.backends[rank];
    TANDEM_ASSIGN_OR_RETURN(ModelMemory memory,
                            MemoryOf(options, target_parts[rank], ModelIndex::kTarget, backend));
    int64_t weights = memory.weight_bytes;
    if (!draft_parts.empty()) {
      TANDEM_ASSIGN_OR_RETURN(memory,
                              MemoryOf(options, draft_parts[rank], ModelIndex::kDraft, backend));
      weights += memory.weight_bytes;
    }
    const Device device = backend.device();
    const bool on_cpu = device.kind == Device::Kind::kCpu;
    ranks.push_back(MemoryOfRank(plan, on_cpu ? "cpu" : fmt::format("cuda:{}", device.index),
                                 weights,
                                 backend.FreeBytes() / (on_cpu ? options.ranks.target : 1)));
  }
  return ranks;
}

// What weights may be rounded to while loading.
std::vector<std::pair<std::string_view, std::optional<QuantScheme>>> RoundedSchemes() {
  using Element = QuantScheme::Element;
  constexpr QuantScheme::Inputs kDynamic = QuantScheme::Inputs::kDynamic;
  return {{"auto", std::nullopt},
          {"fp8", Fp8Scheme(kDynamic)},
          {"int8", QuantScheme{.element = Element::kInt8, .block_rows = 1, .inputs = kDynamic}},
          {"int4", QuantScheme{.element = Element::kInt4, .block_rows = 1, .block_columns = 128}}};
}

}  // namespace

const BoundOptions<ModelOptions>& ModelOptionRows() {
  constexpr std::string_view kModels = "Models";
  static const BoundOptions<ModelOptions> rows({
      BindOption<ModelOptions, &ModelOptions::target>(
          {.name = "model",
           .meaning =
               "Target: a Hugging Face folder, a checkpoint or an engine, an archive of one, "
               "OWNER/MODEL of a hub, or s3://BUCKET/PATH; the embedded pair when left out",
           .group = kModels,
           .alias = "engine_dir|engine|-E",
           .position = Position::kOptional}),
      BindOption<ModelOptions, &ModelOptions::draft>(
          {.name = "draft",
           .meaning = "Draft model, with the target's vocabulary",
           .group = kModels,
           .alias = "draft_engine_dir|draft_engine",
           .position = Position::kOptional}),
      BindOption<ModelOptions, &ModelOptions::tokenizer_dir>(
          {.name = "tokenizer_dir",
           .meaning = "Folder of the tokenizer, when it is not the target's",
           .group = kModels,
           .alias = "tokenizer|-T"}),
      BindChoice<ModelOptions, &ModelOptions::quantize>(
          {.name = "weights",
           .meaning =
               "Storage type of layer weights. auto: the checkpoint's; others are rounded to "
               "while loading: fp8 and int8 with a scale for each output, int4 with a scale "
               "for each 128 inputs of an output. The head of a draft model is rounded too, "
               "to 8 bits",
           .group = kModels},
          RoundedSchemes()),
      BindChoice<ModelOptions, &ModelOptions::head>(
          {.name = "head_weights",
           .meaning = "Storage type of the head of the target, as for --weights",
           .group = kModels},
          RoundedSchemes()),
      BindOption<ModelOptions, &ModelOptions::dummy>(
          {.name = "dummy",
           .meaning = "A config.json instead of a model: made-up weights of that shape, whose next "
                      "tokens are known",
           .group = kModels}),
      BindOption<ModelOptions, &ModelOptions::draft_dummy>(
          {.name = "draft_dummy", .meaning = "The same for the draft", .group = kModels}),
      BindOption<ModelOptions, &ModelOptions::acceptance>(
          {.name = "acceptance",
           .meaning = "Share of tokens on which the dummy draft agrees with the dummy target",
           .group = kModels,
           .min = 0,
           .max = 1}),
  });
  return rows;
}

std::vector<OptionSpec> SessionOptionRows(std::span<const OptionSpec> own) {
  return Join({ModelOptionRows().specs(), SourceOptionRows().specs(), FolderOptionRows().specs(),
               ConfigOptionRows().specs(), LoadQuantizationRows().specs(), own,
               EngineOptionRows().specs(), RankOptionRows().specs(), BackendOptionRows().specs()});
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

Status MakeEngine(Session& session, const EngineOptions& options) {
  session.engine.reset();
  std::vector<EngineRank> ranks = {{.backend = session.backend.get(),
                                    .ranks = {},
                                    .target = session.target_weights,
                                    .draft = session.draft_weights}};
  ranks.insert(ranks.end(), session.other_ranks.begin(), session.other_ranks.end());
  TANDEM_ASSIGN_OR_RETURN(auto communicators, MakeCommunicators(session.backends));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].ranks = std::move(communicators[rank]);
  }
  TANDEM_ASSIGN_OR_RETURN(session.engine,
                          Engine::Create(options, ranks, session.clock, session.turns));
  return {};
}

Status LoadDummyDraft(double acceptance, Session& session, Console& console) {
  session.engine.reset();
  session.draft_weights = {};
  for (EngineRank& rank : session.other_ranks) rank.draft = {};
  TANDEM_ASSIGN_OR_RETURN(Opened opened, OpenDummyDraft(session.options, acceptance,
                                                        session.target.spec, *session.backend));
  WeightStore none;  // a dummy is never shared
  TANDEM_RETURN_IF_ERROR(LoadModel(opened, ModelIndex::kDraft, session, none, console));
  session.draft = std::make_unique<LoadedModel>(std::move(opened.model));
  return {};
}

Result<std::unique_ptr<Session>> OpenSession(const OptionValues& values, Console& console,
                                             const std::function<void(EngineOptions&)>& adjust,
                                             SharedResources* shared) {
  SharedResources own;
  if (shared == nullptr) shared = &own;
  TANDEM_ASSIGN_OR_RETURN(Opening opening, Open(values, *shared, &console, adjust));
  TANDEM_RETURN_IF_ERROR(PlanOf(opening, shared->weights).status());
  OpenedPair& pair = opening.pair;
  auto session = std::make_unique<Session>();
  session->backend = opening.backend;
  session->turns = shared->devices.TurnsOf(session->backend->device());
  session->options = std::move(opening.options);
  session->embedded = pair.embedded;
  session->backends = std::move(opening.backends);
  session->ranks_why = std::move(opening.ranks_why);
  // GPUs that cannot be ranks are found before minutes of loading.
  TANDEM_RETURN_IF_ERROR(MakeCommunicators(session->backends).status());
  for (size_t rank = 1; rank < session->backends.size(); ++rank) {
    session->other_ranks.emplace_back().backend = session->backends[rank].get();
  }
  TANDEM_RETURN_IF_ERROR(
      LoadModel(pair.target, ModelIndex::kTarget, *session, shared->weights, console));
  session->target = std::move(pair.target.model);
  if (pair.draft) {
    TANDEM_RETURN_IF_ERROR(
        LoadModel(*pair.draft, ModelIndex::kDraft, *session, shared->weights, console));
    session->draft = std::make_unique<LoadedModel>(std::move(pair.draft->model));
  }
  TANDEM_RETURN_IF_ERROR(MakeEngine(*session, session->options.engine));
  return session;
}

std::string ShowMemoryLine(const MemoryLine& line) {
  std::string why = line.option.empty() ? "" : "--" + line.option;
  if (!line.note.empty()) why += " (" + line.note + ")";
  return fmt::format("  {:34} {:>10}  {}", line.what, FormatBytes(line.bytes), why);
}

Result<SessionPlan> PlanSession(const OptionValues& values) {
  SharedResources own;
  TANDEM_ASSIGN_OR_RETURN(Opening opening, Open(values, own, nullptr));
  SessionPlan plan;
  TANDEM_ASSIGN_OR_RETURN(plan.engine, PlanOf(opening, own.weights));
  TANDEM_ASSIGN_OR_RETURN(plan.ranks, MemoryOfRanks(opening, plan.engine.memory));
  plan.ranks_why = std::move(opening.ranks_why);
  plan.target = opening.pair.target.model.name;
  if (opening.pair.draft) plan.draft = opening.pair.draft->model.name;
  plan.backend = std::move(opening.backend);
  return plan;
}

}  // namespace tandem::apps
