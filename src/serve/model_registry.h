// ModelRegistry: the models that clients may name, and the service for each. Front ends query it
// for every call, so loading and unloading a model changes only the registry. Owned by whoever
// starts the servers and shared by all of them; every method may be called on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "serve/generate_service.h"

namespace tandem::serve {

struct Model {
  std::string name;
  bool is_alias = false;                     // an additional name of an engine that has its own
  std::shared_ptr<GenerateService> service;  // one for all names of an engine
  int64_t created = 0;                       // time of addition, in seconds since 1970
};
// Keeps the model's service alive: a removed model still serves the calls that hold it, and its
// service ends with the last of them: on that call's thread, unless its owner ends it elsewhere. So
// everything the service refers to must be owned by the same pointer, or outlive every server.
using ModelPtr = std::shared_ptr<const Model>;

class ModelRegistry {
 public:
  // Adds an engine under its name and the aliases. INVALID_ARGUMENT, and nothing is added, when one
  // of the names is taken. An alias may equal `name`.
  Status Add(std::string name, std::shared_ptr<GenerateService> service,
             const std::vector<std::string>& aliases = {});
  // One more name for an engine. NOT_FOUND without it, INVALID_ARGUMENT when the name is taken.
  Status AddAlias(std::string_view engine, std::string alias);
  // Removes a name that is an alias; there may be none.
  void RemoveAlias(std::string_view alias);
  // Removes an engine with all its names; `name` is any of them. NOT_FOUND when there is none.
  Status Remove(std::string_view name);

  // From now on a name that is unknown finds the default model: a server of one engine whose
  // clients write any name.
  void TakeAnyName();

  // By name or alias. NOT_FOUND with Reason::kModelNotFound.
  Result<ModelPtr> Find(std::string_view name) const;
  // The model for requests that name none: the first one added.
  Result<ModelPtr> Default() const;
  std::vector<ModelPtr> List() const;     // every name, in the order they were added
  std::vector<ModelPtr> Engines() const;  // each engine once, under its own name

  std::vector<EngineStats> Stats() const;  // of each engine

  // Ends every open request of every model, and of those that were removed, with UNAVAILABLE and
  // refuses new ones.
  void Close() const;

 private:
  mutable Mutex mutex_;
  std::vector<ModelPtr> models_ TANDEM_GUARDED_BY(mutex_);  // an engine's names stand together
  bool takes_any_name_ TANDEM_GUARDED_BY(mutex_) = false;
  // Of the engines that were removed; calls may still hold them.
  std::vector<std::weak_ptr<GenerateService>> removed_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::serve
