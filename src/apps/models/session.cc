#include "apps/models/session.h"

#include <csignal>
#include <utility>

#include "apps/models/config_rows.h"
#include "apps/models/load_model.h"
#include "apps/models/load_quantization.h"
#include "apps/models/local_model.h"
#include "apps/models/opening.h"
#include "apps/models/session_plan.h"
#include "base/log.h"
#include "runtime/cache/model_index.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

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
               EngineOptionRows().specs(), RankOptionRows().specs(), ReplicaOptionRows().specs(),
               ProcessOptionRows().specs(), BackendOptionRows().specs()});
}

namespace {

// Whether other processes have ranks of the session's engine.
bool SharesEngine(const Session& session) {
  return session.processes != nullptr && session.processes->shares_engine();
}

// The communicators of a replica's ranks. Those of several processes are made once.
Result<std::vector<std::shared_ptr<Communicator>>> CommunicatorsOf(const Session& session,
                                                                   const SessionReplica& replica) {
  const RankOptions& ranks = session.options.ranks;
  if (!SharesEngine(session)) return MakeCommunicators(replica.backends, ranks.StagesOf());
  ProcessGroup& group = *session.processes;
  if (group.communicator == nullptr) {
    return Unimplemented("--num_processes: several processes have one engine, and no second one");
  }
  return MakeCommunicatorsOfProcesses(replica.backends, std::move(group.communicator),
                                      ranks.stages);
}

Result<std::vector<EngineRank>> RanksOf(const Session& session, const SessionReplica& replica) {
  std::vector<EngineRank> ranks = {{.backend = replica.backends.front().get(),
                                    .ranks = {},
                                    .target = replica.target_weights,
                                    .draft = replica.draft_weights}};
  ranks.insert(ranks.end(), replica.other_ranks.begin(), replica.other_ranks.end());
  TANDEM_ASSIGN_OR_RETURN(auto communicators, CommunicatorsOf(session, replica));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].ranks = std::move(communicators[rank]);
  }
  return ranks;
}

}  // namespace

Status MakeEngine(Session& session, const EngineOptions& options) {
  session.engine.reset();
  std::vector<ReplicaPlace> places;
  for (const SessionReplica& replica : session.replicas) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<EngineRank> ranks, RanksOf(session, replica));
    places.push_back({.ranks = std::move(ranks), .turns = replica.turns});
  }
  const RankProcesses* const processes =
      SharesEngine(session) ? &session.processes->peers : nullptr;
  TANDEM_ASSIGN_OR_RETURN(session.engine,
                          Replicas::Create(options, places, session.clock, processes));
  return {};
}

Status LoadDummyDraft(double acceptance, Session& session, Console& console) {
  session.engine.reset();
  for (SessionReplica& replica : session.replicas) {
    replica.draft_weights = {};
    for (EngineRank& rank : replica.other_ranks) rank.draft = {};
  }
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
  auto session = std::make_unique<Session>();
  session->processes = opening.processes;
  if (session->processes != nullptr && session->processes->waits()) return session;
  TANDEM_RETURN_IF_ERROR(PlansOf(opening, shared->weights).status());
  OpenedPair& pair = opening.pair;
  session->backend = opening.backend;
  session->options = std::move(opening.options);
  session->embedded = pair.embedded;
  session->ranks_why = std::move(opening.ranks_why);
  for (std::vector<std::shared_ptr<ops::Backend>>& backends : opening.backends) {
    const auto number = static_cast<int32_t>(session->replicas.size());
    SessionReplica& replica = session->replicas.emplace_back();
    replica.backends = std::move(backends);
    replica.turns = shared->devices.TurnsOf(replica.backends.front()->device(), number);
    // GPUs that cannot be ranks are found before minutes of loading.
    if (!SharesEngine(*session)) {
      TANDEM_RETURN_IF_ERROR(
          MakeCommunicators(replica.backends, session->options.ranks.StagesOf()).status());
    }
    for (size_t rank = 1; rank < replica.backends.size(); ++rank) {
      replica.other_ranks.emplace_back().backend = replica.backends[rank].get();
    }
  }
  TANDEM_RETURN_IF_ERROR(
      LoadModel(pair.target, ModelIndex::kTarget, *session, shared->weights, console));
  session->target = std::move(pair.target.model);
  if (pair.draft) {
    TANDEM_RETURN_IF_ERROR(
        LoadModel(*pair.draft, ModelIndex::kDraft, *session, shared->weights, console));
    session->draft = std::make_unique<LoadedModel>(std::move(pair.draft->model));
  }
  if (session->follows()) return session;
  TANDEM_RETURN_IF_ERROR(MakeEngine(*session, session->options.engine));
  return session;
}

Status FollowSession(Session& session) {
  // Whoever ends a job signals all of its processes: the one that leads finishes its requests, for
  // which it needs this one, and ends it then.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  ProcessGroup& group = *session.processes;
  LogInfo("process {} follows process 0 and ends with it", group.rank);
  if (group.waits()) {
    RankMessage none;
    static_cast<void>(group.waiting.front()->Receive(none));
    return {};
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EngineRank> ranks,
                          RanksOf(session, session.replicas.front()));
  return FollowEngine(session.options.engine, ranks, session.clock, group.peers);
}

}  // namespace tandem::apps
