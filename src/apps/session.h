// What most verbs need first: the backend, the models named on the command line (or the embedded
// pair) and an engine over them. Made and destroyed by one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/command.h"
#include "base/clock.h"
#include "ops/backend.h"
#include "plan/source.h"
#include "runtime/engine.h"

namespace tandem::apps {

// --threads, --isa ...
std::span<const OptionSpec> BackendOptionRows();
// MODEL, DRAFT, --dummy ... and the rows of the backend and the engine.
std::vector<OptionSpec> SessionOptionRows();
// MODEL and DRAFT by position.
std::vector<Positional> SessionPositionals();

Result<std::unique_ptr<ops::Backend>> MakeBackend(const OptionValues& options);

// The folder with `target/` and `draft/`: beside the source, or under share/tandem beside the
// binary.
Result<std::filesystem::path> EmbeddedPairFolder();

// One model of the session as it was opened.
struct LoadedModel {
  std::string name;              // for people: the folder's name
  std::filesystem::path folder;  // where its tokenizer lies; empty for a dummy
  ModelSpec spec;
  std::optional<DummyMap> map = {};  // of a dummy: what it answers
};

struct Session {
  SteadyClock clock;
  std::unique_ptr<ops::Backend> backend;
  LoadedModel target;
  std::unique_ptr<LoadedModel> draft;  // null without one
  std::unique_ptr<Engine> engine;
  bool embedded = false;  // the embedded pair was taken, none being named
};

// Loads the models and makes the engine (not started). `adjust` may change the engine's options
// after they were read.
Result<std::unique_ptr<Session>> OpenSession(
    const OptionValues& options, Console& console,
    const std::function<void(EngineOptions&)>& adjust = {});

}  // namespace tandem::apps
