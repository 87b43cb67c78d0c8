#include "apps/session.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "base/bound_options.h"
#include "base/log.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kModels = "Models";
constexpr std::string_view kMachine = "Machine";

template <auto kField>
BoundOption<ops::CpuOptions> Sets(OptionSpec spec) {
  spec.group = kMachine;
  return BindOption<ops::CpuOptions, kField>(spec);
}

const BoundOptions<ops::CpuOptions>& CpuRows() {
  static const BoundOptions<ops::CpuOptions> rows({
      Sets<&ops::CpuOptions::num_threads>({.name = "threads",
                                           .meaning = "Compute threads; 0: one per core",
                                           .min = 0,
                                           .max = 1024}),
      Sets<&ops::CpuOptions::pin_threads>(
          {.name = "pin_threads", .meaning = "Bind each compute thread to a core"}),
      Sets<&ops::CpuOptions::isa>(
          {.name = "isa",
           .meaning = "Instruction set of the kernels; auto: chosen by a short measurement"}),
  });
  return rows;
}

constexpr OptionSpec kDeviceRows[] = {
    {.name = "device",
     .default_value = "auto",
     .meaning = "cpu, cuda or cuda:N; auto: the first GPU where there is one",
     .group = kMachine},
    {.name = "batch_invariant",
     .type = OptionType::kFlag,
     .meaning = "GPU: results that do not depend on the other sequences of a step, at the price of "
                "the fastest kernels (a CPU's never do)",
     .group = kMachine},
};

constexpr OptionSpec kModelRows[] = {
    {.name = "model",
     .meaning = "Target: a Hugging Face folder, a checkpoint or an engine; the embedded pair when "
                "left out",
     .group = kModels,
     .alias = "engine_dir"},
    {.name = "draft",
     .meaning = "Draft model that rides with the target; same vocabulary",
     .group = kModels,
     .alias = "draft_engine_dir"},
    {.name = "tokenizer_dir",
     .meaning = "Folder with tokenizer.json, when it is not the target's",
     .group = kModels},
    {.name = "weights",
     .default_value = "auto",
     .meaning =
         "What the layers' weights are kept in: what they are stored in (fp8 on a GPU alone), "
         "or fp8, rounded while loading (GPU)",
     .group = kModels,
     .choices = "auto|fp8"},
    {.name = "dummy",
     .meaning = "A config.json: the target gets made-up weights of that shape, whose next tokens "
                "are known",
     .group = kModels},
    {.name = "draft_dummy", .meaning = "The same for the draft", .group = kModels},
    {.name = "acceptance",
     .type = OptionType::kFloat,
     .default_value = "0.8",
     .meaning = "Share of tokens on which the dummy draft agrees with the dummy target",
     .group = kModels,
     .min = 0,
     .max = 1},
};

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

// A model whose weights are not packed yet.
struct Opened {
  LoadedModel model;
  ModelSource source;
};

Opened WithName(ModelSource source, std::string name) {
  Opened opened;
  opened.model = {.name = std::move(name), .folder = source.tokenizer_dir, .spec = source.spec()};
  opened.source = std::move(source);
  return opened;
}

Result<Opened> OpenFolder(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(ModelSource source, OpenModel(path));
  // "dictionary/target": the last folder alone is often a role or a version.
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  const std::filesystem::path& whole = error ? path : canonical;
  return WithName(std::move(source), (whole.parent_path().filename() / whole.filename()).string());
}

Result<Opened> OpenShape(const std::filesystem::path& config, const DummyOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(ModelSource source, OpenDummy(config, options));
  Opened opened = WithName(std::move(source), "dummy " + config.stem().string());
  opened.model.map.emplace(options, opened.model.spec.vocab_size);
  return opened;
}

struct OpenedPair {
  Opened target;
  std::unique_ptr<Opened> draft;
  bool embedded = false;
};

DummyOptions DummyOptionsFrom(const OptionValues& options, ops::Backend& backend,
                              double agreement) {
  return {.agreement = agreement,
          .num_threads = static_cast<int>(options.Int("threads")),
          .backend = &backend};
}

Result<Opened> OpenDummyDraft(const OptionValues& options, double acceptance,
                              const ModelSpec& target, ops::Backend& backend) {
  TANDEM_ASSIGN_OR_RETURN(Opened draft, OpenShape(options.Text("draft_dummy"),
                                                  DummyOptionsFrom(options, backend, acceptance)));
  if (target.vocab_size != draft.model.spec.vocab_size) {
    return InvalidArgument(
        fmt::format("--draft_dummy: its vocabulary of {} tokens is not the target's of {}",
                    draft.model.spec.vocab_size, target.vocab_size));
  }
  return draft;
}

Result<OpenedPair> OpenDummyPair(const OptionValues& options, ops::Backend& backend) {
  OpenedPair pair;
  TANDEM_ASSIGN_OR_RETURN(
      pair.target, OpenShape(options.Text("dummy"), DummyOptionsFrom(options, backend, 1.0)));
  if (!options.IsSet("draft_dummy") || options.Flag("no_draft")) return pair;
  TANDEM_ASSIGN_OR_RETURN(Opened draft, OpenDummyDraft(options, options.Float("acceptance"),
                                                       pair.target.model.spec, backend));
  pair.draft = std::make_unique<Opened>(std::move(draft));
  return pair;
}

Result<OpenedPair> OpenPair(const OptionValues& options, ops::Backend& backend) {
  if (options.IsSet("dummy")) return OpenDummyPair(options, backend);
  std::filesystem::path target = options.Text("model");
  std::filesystem::path draft = options.Text("draft");
  OpenedPair pair;
  if (target.empty()) {
    if (!draft.empty()) return InvalidArgument("--draft: names a draft without a target");
    TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path folder, EmbeddedPairFolder());
    target = folder / "target";
    draft = folder / "draft";
    pair.embedded = true;
  }
  TANDEM_ASSIGN_OR_RETURN(pair.target, OpenFolder(target));
  if (!draft.empty() && !options.Flag("no_draft")) {
    TANDEM_ASSIGN_OR_RETURN(Opened opened, OpenFolder(draft));
    pair.draft = std::make_unique<Opened>(std::move(opened));
  }
  return pair;
}

// What an engine folder was built for bounds what is asked at run time; lowering what was asked for
// is told.
void ApplyLimits(const OptionValues& options, const BuildLimits& limits, EngineOptions& engine) {
  const auto bound = [&](std::string_view name, int64_t limit, int32_t& value) {
    const auto narrow = static_cast<int32_t>(std::min<int64_t>(limit, INT32_MAX));
    if (narrow <= 0 || (value > 0 && value <= narrow)) return;
    if (options.IsSet(name) && value > narrow) {
      LogWarning("--{} {}: the engine was built for {}, which is used", name, value, narrow);
    }
    value = narrow;
  };
  bound("max_batch_size", limits.max_batch_size, engine.max_batch_size);
  bound("max_num_tokens", limits.max_num_tokens, engine.max_num_tokens);
  bound("max_seq_len", limits.max_seq_len, engine.max_seq_len);
  bound("max_input_len", limits.max_input_len, engine.max_input_len);
  bound("max_draft_len", limits.max_draft_len, engine.max_draft_len);
}

// How the layers' weights are kept, where it is not as they are stored.
std::optional<QuantScheme> KeptScheme(const OptionValues& options) {
  if (options.Text("weights") == "fp8") return Fp8Scheme(QuantScheme::Inputs::kDynamic);
  return std::nullopt;
}

// As many positions as will be served.
int64_t PositionsOf(const ModelSpec& spec, const EngineOptions& engine) {
  const int64_t longest = engine.max_seq_len;
  return longest > 0 ? std::min(longest, spec.max_positions) : spec.max_positions;
}

// A prompt leaves room for a token of output; asking for a longer one is told.
void BoundInput(const OptionValues& options, const ModelSpec& spec, EngineOptions& engine) {
  const int64_t longest = PositionsOf(spec, engine);
  if (engine.max_input_len < longest) return;
  if (options.IsSet("max_input_len")) {
    LogWarning("--max_input_len {}: a sequence has at most {} tokens, so a prompt has at most {}",
               engine.max_input_len, longest, longest - 1);
  }
  engine.max_input_len = static_cast<int32_t>(longest - 1);
}

Result<EngineModel> Load(const OptionValues& options, Opened& opened, Session& session,
                         Console& console) {
  EngineModel model{.weights = nullptr, .name = opened.model.name};
  TANDEM_ASSIGN_OR_RETURN(model.weights,
                          LoadWeights(
                              *opened.source.weights, *session.backend,
                              PositionsOf(opened.model.spec, session.engine_options),
                              [&](double done) { console.Progress("loading " + model.name, done); },
                              KeptScheme(options)));
  opened.source.weights.reset();  // packed: the files need not stay mapped
  return model;
}

Result<std::unique_ptr<ops::Backend>> MakeCpu(const OptionValues& options) {
  ops::CpuOptions cpu;
  CpuRows().Apply(options, cpu);
  auto backend = ops::MakeCpuBackend(cpu);
  if (!backend.ok()) return backend.status().Annotate("--isa");
  return backend;
}

// The number in "cuda:1"; 0 for "cuda".
Result<int> ParseCudaDevice(std::string_view device) {
  constexpr std::string_view kCuda = "cuda";
  int index = 0;
  std::string_view number = device;
  if (device.starts_with(kCuda)) number.remove_prefix(kCuda.size());
  if (number.empty()) return index;
  const char* begin = number.data() + 1;
  const char* end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(begin, end, index);
  if (number.front() != ':' || begin == end || error != std::errc{} || rest != end) {
    return InvalidArgument(
        fmt::format("--device: '{}' is none of auto, cpu, cuda, cuda:0, cuda:1 ...", device));
  }
  return index;
}

// The best defaults for options that were not given: a GPU is fed in advance and has its memory to
// itself.
void ApplyDevice(const ops::Backend& backend, const OptionValues& options, EngineOptions& engine) {
  if (backend.device().kind == Device::Kind::kCpu) return;
  if (!options.IsSet("steps_in_flight")) engine.steps_in_flight = 1;
  if (!options.IsSet("kv_cache_free_gpu_mem_fraction")) engine.kv_cache_free_fraction = 0.9;
}

Result<ModelMemory> MemoryOf(const OptionValues& options, const Opened& opened,
                             const EngineOptions& engine, ops::Backend& backend) {
  const ModelSpec& spec = opened.model.spec;
  const std::optional<QuantScheme> kept = KeptScheme(options);
  TANDEM_RETURN_IF_ERROR(CheckLoadable(spec, backend, kept));
  const int64_t positions = PositionsOf(spec, engine);
  return ModelMemory{.spec = &spec,
                     .weight_bytes = WeightBytes(spec, backend, positions, kept),
                     .max_positions = positions};
}

// The parts of a session; nothing is loaded yet.
struct Opening {
  std::unique_ptr<ops::Backend> backend;
  OpenedPair pair;
  EngineOptions engine;
};

Result<Opening> Open(const OptionValues& options,
                     const std::function<void(EngineOptions&)>& adjust = {}) {
  Opening opening;
  TANDEM_ASSIGN_OR_RETURN(opening.backend, MakeBackend(options));
  TANDEM_ASSIGN_OR_RETURN(opening.pair, OpenPair(options, *opening.backend));
  opening.engine = EngineOptionsFrom(options);
  ApplyDevice(*opening.backend, options, opening.engine);
  if (adjust) adjust(opening.engine);
  const std::optional<BuildLimits>& limits = opening.pair.target.source.limits;
  if (limits) ApplyLimits(options, *limits, opening.engine);
  BoundInput(options, opening.pair.target.model.spec, opening.engine);
  return opening;
}

Result<EnginePlan> PlanOf(const OptionValues& options, const Opening& opening) {
  ops::Backend& backend = *opening.backend;
  const OpenedPair& pair = opening.pair;
  TANDEM_ASSIGN_OR_RETURN(const ModelMemory target,
                          MemoryOf(options, pair.target, opening.engine, backend));
  ModelMemory draft;
  if (pair.draft) {
    TANDEM_ASSIGN_OR_RETURN(draft, MemoryOf(options, *pair.draft, opening.engine, backend));
  }
  const int64_t weight_bytes = target.weight_bytes + draft.weight_bytes;
  const int64_t free_bytes = backend.FreeBytes();
  if (weight_bytes > free_bytes) {
    return FailedPrecondition(fmt::format("the weights need {}, {} are free",
                                          FormatBytes(weight_bytes), FormatBytes(free_bytes)));
  }
  return PlanEngine(opening.engine, target, draft, backend, free_bytes - weight_bytes);
}

}  // namespace

std::vector<OptionSpec> BackendOptionRows() { return Join({kDeviceRows, CpuRows().specs()}); }

std::vector<OptionSpec> SessionOptionRows() {
  return Join({kModelRows, EngineOptionRows(), BackendOptionRows()});
}

std::vector<Positional> SessionPositionals() { return {{.name = "model"}, {.name = "draft"}}; }

Result<std::unique_ptr<ops::Backend>> MakeBackend(const OptionValues& options) {
  const std::string& device = options.Text("device");
  if (device == "cpu" || (device == "auto" && ops::NumCudaDevices() == 0)) {
    return MakeCpu(options);
  }
  ops::CudaOptions cuda;
  cuda.batch_invariant = options.Flag("batch_invariant");
  if (device != "auto") {
    TANDEM_ASSIGN_OR_RETURN(cuda.device, ParseCudaDevice(device));
  }
  auto backend = ops::MakeCudaBackend(cuda);
  if (!backend.ok()) return backend.status().Annotate("--device");
  return backend;
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

bool NamesDraft(const OptionValues& options) {
  if (options.IsSet("dummy")) return options.IsSet("draft_dummy");
  return options.IsSet("draft") || !options.IsSet("model");
}

Status MakeEngine(Session& session, const EngineOptions& options) {
  session.engine.reset();
  TANDEM_ASSIGN_OR_RETURN(session.engine,
                          Engine::Create(options, session.target_weights, session.draft_weights,
                                         *session.backend, session.clock));
  return {};
}

Status LoadDummyDraft(const OptionValues& options, double acceptance, Session& session,
                      Console& console) {
  session.engine.reset();
  session.draft_weights = {};
  TANDEM_ASSIGN_OR_RETURN(
      Opened opened, OpenDummyDraft(options, acceptance, session.target.spec, *session.backend));
  TANDEM_ASSIGN_OR_RETURN(session.draft_weights, Load(options, opened, session, console));
  session.draft = std::make_unique<LoadedModel>(std::move(opened.model));
  return {};
}

Result<std::unique_ptr<Session>> OpenSession(const OptionValues& options, Console& console,
                                             const std::function<void(EngineOptions&)>& adjust) {
  TANDEM_ASSIGN_OR_RETURN(Opening opening, Open(options, adjust));
  TANDEM_RETURN_IF_ERROR(PlanOf(options, opening).status());
  OpenedPair& pair = opening.pair;
  auto session = std::make_unique<Session>();
  session->backend = std::move(opening.backend);
  session->engine_options = opening.engine;
  session->embedded = pair.embedded;
  TANDEM_ASSIGN_OR_RETURN(session->target_weights, Load(options, pair.target, *session, console));
  session->target = std::move(pair.target.model);
  if (pair.draft) {
    TANDEM_ASSIGN_OR_RETURN(session->draft_weights, Load(options, *pair.draft, *session, console));
    session->draft = std::make_unique<LoadedModel>(std::move(pair.draft->model));
  }
  TANDEM_RETURN_IF_ERROR(MakeEngine(*session, session->engine_options));
  return session;
}

Result<SessionPlan> PlanSession(const OptionValues& options) {
  TANDEM_ASSIGN_OR_RETURN(Opening opening, Open(options));
  SessionPlan plan;
  TANDEM_ASSIGN_OR_RETURN(plan.engine, PlanOf(options, opening));
  plan.target = opening.pair.target.model.name;
  if (opening.pair.draft) plan.draft = opening.pair.draft->model.name;
  plan.backend = std::move(opening.backend);
  return plan;
}

}  // namespace tandem::apps
