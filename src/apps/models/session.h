// The common start of most verbs: the backend, the models named on the command line (or the
// embedded pair) and an engine over them. Made and destroyed by one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/models/devices.h"
#include "apps/models/processes.h"
#include "apps/models/rank_use.h"
#include "apps/models/ranks.h"
#include "apps/models/replicas.h"
#include "apps/models/weight_store.h"
#include "base/bound_options.h"
#include "base/clock.h"
#include "base/turns.h"
#include "engine_folder/source.h"
#include "model/config_options.h"
#include "ops/backend.h"
#include "runtime/engine_options.h"
#include "runtime/engine_plan.h"
#include "runtime/replicas.h"

namespace tandem::apps {

// Which models: the embedded pair when neither a target nor a dummy is named.
struct ModelOptions {
  std::filesystem::path target;
  std::filesystem::path draft;
  std::filesystem::path tokenizer_dir;
  std::optional<QuantScheme> quantize;  // the layers' weights, while loading; as stored without
  std::optional<QuantScheme> head;      // the target's head, likewise
  ConfigOptions config;                 // of the target's config.json
  std::filesystem::path dummy;          // a config.json instead of a target
  std::filesystem::path draft_dummy;
  double acceptance = 0.8;  // of the dummy draft

  // Whether a draft is named, which --no_draft may still switch off.
  bool NamesDraft() const {
    return dummy.empty() ? target.empty() || !draft.empty() : !draft_dummy.empty();
  }
};

struct SessionOptions {
  ModelOptions models;
  BackendOptions backend;
  ReplicaOptions replicas;
  RankOptions ranks;
  EngineOptions engine;
};

const BoundOptions<ModelOptions>& ModelOptionRows();
// Of the models, then the verb's own, then of the engine and the backend.
std::vector<OptionSpec> SessionOptionRows(std::span<const OptionSpec> own = {});

// The folder with `target/` and `draft/`: next to the source, or in share/tandem next to the
// binary.
Result<std::filesystem::path> EmbeddedPairFolder();

// One model of the session as it was opened.
struct LoadedModel {
  std::string name;              // for people: the folder's name
  std::filesystem::path path;    // that was opened; empty for a dummy
  std::filesystem::path folder;  // where its tokenizer is; empty for a dummy
  ModelSpec spec;
  std::optional<DummyMap> map = {};  // of a dummy: its next token for each token
};

// What the sessions of one process share. It outlives the opening of each, not the sessions.
struct SharedResources {
  SharedDevices devices;
  WeightStore weights;
  // Of this process, once the first session has been opened; null: it is alone.
  std::shared_ptr<ProcessGroup> processes;
  // Looked at while a model is downloaded and quantized; an error ends that. Null: never.
  std::function<Status()> check = {};
};

// Parts of the engine of one replica, kept so that another engine can be made without loading
// again.
struct SessionReplica {
  std::vector<std::shared_ptr<ops::Backend>> backends;  // of each rank; at least one
  std::shared_ptr<Turns> turns;                         // of the engines on the first one's device
  // Of the first rank, and of the others.
  EngineModel target_weights;
  EngineModel draft_weights;
  std::vector<EngineRank> other_ranks;
};

struct Session {
  SteadyClock clock;
  std::shared_ptr<ops::Backend> backend;  // of the first rank of the first replica
  // Why there are as many ranks as there are; empty: they were asked for.
  std::string ranks_why;
  LoadedModel target;
  std::unique_ptr<LoadedModel> draft;    // null without one
  std::vector<SessionReplica> replicas;  // at least one
  SessionOptions options;                // as they were settled for these models and this device
  std::unique_ptr<Replicas> engine;      // null where the process follows another one
  bool embedded = false;                 // the embedded pair was taken because no model was named
  std::shared_ptr<ProcessGroup> processes;  // null: the process is alone

  // Whether another process has the engine: this one then calls FollowSession and does nothing
  // else.
  bool follows() const { return processes != nullptr && processes->rank > 0; }
};

// What OpenSession would create, before anything is loaded.
struct SessionPlan {
  std::vector<std::vector<std::shared_ptr<ops::Backend>>> backends;  // of each replica's ranks
  std::string target;
  std::string draft;           // empty without one
  EnginePlan engine;           // of each replica
  std::vector<RankUse> ranks;  // of each of its ranks; empty for one
  std::string ranks_why;       // as Session's
};
// FAILED_PRECONDITION when the models or their cache do not fit into free memory.
Result<SessionPlan> PlanSession(const OptionValues& values);

// "target workspace  1.2 GiB  --max_num_tokens", in columns.
std::string ShowMemoryLine(const MemoryLine& line);

// Destroys the session's engine, then makes a new one (not started) from its models and `options`,
// which are those of each replica.
Status MakeEngine(Session& session, const EngineOptions& options);

// Replaces the session's --draft_dummy by another dummy draft, which agrees with the target on a
// share `acceptance` of tokens. The engine that uses the old one is destroyed first.
Status LoadDummyDraft(double acceptance, Session& session, Console& console);

// Loads the models and makes the engine (not started); what does not fit is refused before loading.
// In a process that follows another one it only loads its part. `adjust` may change the engine's
// options after they were read. `shared`: with the other sessions of the process, which may serve
// meanwhile; null: there are none.
Result<std::unique_ptr<Session>> OpenSession(const OptionValues& values, Console& console,
                                             const std::function<void(EngineOptions&)>& adjust = {},
                                             SharedResources* shared = nullptr);

// Runs this process's rank until the process that leads ends. The error is that rank's own, or
// UNAVAILABLE when that process was lost.
Status FollowSession(Session& session);

}  // namespace tandem::apps
