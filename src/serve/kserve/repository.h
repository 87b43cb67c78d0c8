// Repository: the models that the inference protocol serves, by name: their state, their statistics
// and the one entry for every call. Models may be loaded and unloaded while others serve; a call
// that runs keeps its model. Owned by whoever starts the servers and shared by all transports;
// every method may be called on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "serve/kserve/inference.h"
#include "serve/kserve/model_statistics.h"
#include "serve/kserve/shared_memory.h"
#include "serve/worker.h"

namespace tandem::serve::kserve {

inline constexpr std::string_view kModelVersion = "1";  // of every model

using InferModelPtr = std::shared_ptr<const InferModel>;

enum class ModelState : uint8_t {
  kReady,
  kUnavailable,  // not loaded, and not meant to be
  kFailed,       // meant to be loaded, and could not be
  kLoading,
  kUnloading,
};
std::string_view ModelStateName(ModelState state);  // "READY"; a model that failed is "UNAVAILABLE"

// A row of the repository's index.
struct ModelEntry {
  std::string name;
  std::string version;  // empty if no version was found
  ModelState state = ModelState::kUnavailable;
  std::string reason;  // why it is not ready; empty when it is
};

// Loads and unloads models by name; may take long, and is called on one thread at a time.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;
  // `config`: JSON text that replaces the stored configuration; empty: none.
  virtual Status Load(std::string_view name, std::string_view config) = 0;
  // With `dependents` the models of which an ensemble is composed are unloaded too.
  virtual Status Unload(std::string_view name, bool dependents) = 0;
};

// The figures of a model that can be called.
struct ModelFigures {
  std::string name;
  bool is_decoupled = false;
  StatisticsSnapshot statistics;
  std::optional<Nanos> load_time;  // if it was loaded by the repository's loader
};

class Repository {
 public:
  // `clock` outlives the repository.
  explicit Repository(const Clock& clock);
  ~Repository();
  Repository(const Repository&) = delete;
  Repository& operator=(const Repository&) = delete;

  // Adds a model that is ready, or replaces the one of its name.
  void Add(InferModelPtr model);
  // Sets the state of a name that cannot be called (not kReady). Calls that run go on and keep
  // their model. The time from kLoading to Add is the model's load time.
  void SetState(std::string_view name, ModelState state, std::string reason);

  // Leaves no trace of a name that cannot be called.
  void Forget(std::string_view name);

  // `version` may be empty. NOT_FOUND "Request for unknown model: 'x' is not found", or with
  // "version 2"; UNAVAILABLE when the model is known and not ready.
  Result<InferModelPtr> Find(std::string_view name, std::string_view version = {}) const;
  bool Has(std::string_view name) const;                         // in any state
  std::vector<ModelEntry> Index(bool only_ready = false) const;  // in the order of names
  std::vector<InferModelPtr> Models() const;  // those that can be called, in the order of names

  // Reads the inputs that are in shared memory, checks the request against the model's config and
  // starts it. Outputs for shared memory come without data: it has been written there. Never blocks
  // and never fails: a refusal is the call's first news. `model` comes from Find.
  std::unique_ptr<InferCall> Infer(const InferModelPtr& model, InferRequest request,
                                   Wake wake) const;

  // Where clients may leave the inputs of a request and have its outputs written.
  SharedMemoryRegions& shared_memory() { return shared_memory_; }
  const SharedMemoryRegions& shared_memory() const { return shared_memory_; }

  // NOT_FOUND as Find.
  Result<StatisticsSnapshot> Statistics(std::string_view name) const;
  std::vector<ModelFigures> Figures() const;  // of every model, in the order of names

  // Every model's engine makes progress.
  bool Alive() const;
  // Alive, not leaving, and with strict readiness no model has failed. Every transport's health
  // routes answer by it.
  bool Ready() const;
  bool Ready(const InferModel& model) const { return !leaving_ && model.Ready(); }
  // Marks every model as not ready because the server is about to end. Calls are still answered.
  void SetLeaving() { leaving_ = true; }
  bool is_leaving() const { return leaving_; }

  // Whether a model that failed to load makes the whole server not ready; true unless set before
  // the servers start.
  void SetStrictReadiness(bool is_strict) { strict_readiness_ = is_strict; }

  // `loader` outlives the repository's servers. Without one, Load and Unload are refused.
  void SetLoader(ModelLoader* loader) { loader_ = loader; }
  // Runs a task that waits for Load or Unload, one after the other, on the repository's own thread.
  // False when too many wait.
  bool RunControl(std::function<void()> task) { return control_.TryRun(std::move(task)); }
  // Wait until the model is loaded or unloaded; one at a time.
  Status Load(std::string_view name, std::string_view config);
  Status Unload(std::string_view name, bool dependents);

 private:
  struct Entry;
  using Entries = std::map<std::string, Entry, std::less<>>;

  // Has the loader change the models, unless there is none or the server is about to end.
  Status Control(const std::function<Status(ModelLoader&)>& change);
  // The running requests of a name that is known.
  std::shared_ptr<RunningRequests> RunningOf(std::string_view name) const;
  void CollectMembers(std::string_view name,
                      std::vector<std::shared_ptr<ModelStatistics>>& statistics) const;

  const Clock& clock_;
  ModelLoader* loader_ = nullptr;
  SharedMemoryRegions shared_memory_;
  bool strict_readiness_ = true;
  Mutex loading_;  // held while a model is loaded or unloaded
  mutable Mutex mutex_;
  Entries entries_ TANDEM_GUARDED_BY(mutex_);
  std::atomic<bool> leaving_{false};
  Worker control_;  // last: its task uses the members above
};

}  // namespace tandem::serve::kserve
