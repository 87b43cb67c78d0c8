// Loading the models of a session: on each rank its part, or what another session or replica has of
// it. Used by those that open sessions (opening.h, session.cc), by the thread that opens one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/models/session.h"
#include "model/dummy_weights.h"
#include "runtime/cache/model_index.h"

namespace tandem::apps {

// A model whose weights are not packed yet.
struct Opened {
  LoadedModel model;
  ModelSource source;
  std::optional<DummyOptions> dummy = {};  // that its weights are made with
};

// As many positions as will be served.
int64_t PositionsOf(const ModelSpec& spec, const EngineOptions& engine);

// How the target's or the draft's weights are kept.
AskedFormat FormatOf(const SessionOptions& options, ModelIndex model);

// Under which other sessions find the weights of a rank, whose part of the model is `part`. Those
// of a dummy are never shared: empty.
std::string StoreKeyOf(const SessionOptions& options, const Opened& opened, const ModelSpec& part,
                       ModelIndex index, const ops::Backend& backend);

// Loads a model on every rank of every replica of the session, whose backends and options are
// settled. On a CPU the replicas share what the first has loaded.
Status LoadModel(Opened& opened, ModelIndex index, Session& session, WeightStore& store,
                 Console& console);

}  // namespace tandem::apps
