#include "apps/models/load_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "model/rank_source.h"

namespace tandem::apps {
namespace {

// Whether several ranks have the same of the model, so that they must compute the same bits.
bool IsRepeated(const SessionOptions& options, const ModelSpec& part) {
  const RankPlace& place = part.place;
  return options.ranks.count() > place.ranks * place.stages;
}

// A rank's part is cut from the whole model, but for a dummy, whose weights are made where they
// lie: a rank's share of all layers, of which its stage takes its own.
Result<std::unique_ptr<WeightSource>> SourceOfPart(Opened& opened, const ModelSpec& part,
                                                   ops::Backend& backend) {
  const bool is_there = part.place.is_whole() && opened.dummy && opened.dummy->backend == &backend;
  if (!opened.dummy || is_there) {
    return std::unique_ptr<WeightSource>(
        std::make_unique<RankSource>(*opened.source.weights, part));
  }
  DummyOptions options = *opened.dummy;
  options.backend = &backend;
  TANDEM_ASSIGN_OR_RETURN(
      ModelSpec share,
      RankSpec(opened.model.spec, {.rank = part.place.rank, .ranks = part.place.ranks}));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DummySource> made,
                          DummySource::FromSpec(std::move(share), options));
  return std::unique_ptr<WeightSource>(std::make_unique<RankSource>(std::move(made), part));
}

// The weights of a rank, whose part of the model is `part`.
Result<EngineModel> LoadPart(Opened& opened, const ModelSpec& part, ModelIndex index,
                             const std::shared_ptr<ops::Backend>& backend, Session& session,
                             WeightStore& store, Console& console) {
  EngineModel model{.weights = nullptr, .name = opened.model.name};
  const int64_t positions = PositionsOf(opened.model.spec, session.options.engine);
  const std::string key = StoreKeyOf(session.options, opened, part, index, *backend);
  model.weights = store.Find(key, positions);
  if (model.weights != nullptr) return model;
  std::string progress = "loading " + model.name;
  if (part.place.stages > 1) progress += fmt::format(", stage {}", part.place.stage + 1);
  if (part.place.ranks > 1) progress += fmt::format(", rank {}", part.place.rank);
  AskedFormat format = FormatOf(session.options, index);
  format.same_everywhere = IsRepeated(session.options, part);
  const Turn turn(session.turns.get());
  // A GPU is a thread's, and the thread's last one was another rank's.
  if (backend->device().kind == Device::Kind::kCuda) backend->BindThread();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                          SourceOfPart(opened, part, *backend));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Weights> loaded,
                          LoadWeights(
                              *source, *backend, positions,
                              [&](double done) {
                                console.Progress(progress, done);
                                turn.Yield();  // between layers others may serve
                              },
                              format));
  // The memory belongs to the backend, which so lives as long as the weights.
  const Weights* const weights = loaded.get();
  using Owners = std::pair<std::shared_ptr<ops::Backend>, std::shared_ptr<const Weights>>;
  auto owners = std::make_shared<Owners>(backend, std::move(loaded));
  model.weights = std::shared_ptr<const Weights>(std::move(owners), weights);
  if (!key.empty()) store.Keep(key, model.weights);
  return model;
}

}  // namespace

int64_t PositionsOf(const ModelSpec& spec, const EngineOptions& engine) {
  const int64_t longest = engine.max_seq_len;
  return longest > 0 ? std::min(longest, spec.max_positions) : spec.DefaultPositions();
}

AskedFormat FormatOf(const SessionOptions& options, ModelIndex model) {
  const bool draft = model == ModelIndex::kDraft;
  return {.layers = options.models.quantize,
          .head = draft ? std::nullopt : options.models.head,
          .head_as_layers = draft};
}

std::string StoreKeyOf(const SessionOptions& options, const Opened& opened, const ModelSpec& part,
                       ModelIndex index, const ops::Backend& backend) {
  if (opened.model.path.empty()) return {};
  std::string key =
      WeightStore::KeyOf(opened.model.path, opened.model.spec, backend, FormatOf(options, index));
  if (IsRepeated(options, part)) key += ", the same on several ranks";
  const RankPlace& place = part.place;
  if (place.ranks > 1) key += fmt::format(", rank {} of {}", place.rank, place.ranks);
  if (place.stages > 1) key += fmt::format(", stage {} of {}", place.stage, place.stages);
  return key;
}

Status LoadModel(Opened& opened, ModelIndex index, Session& session, WeightStore& store,
                 Console& console) {
  const bool is_target = index == ModelIndex::kTarget;
  const RankOptions& ranks = session.options.ranks;
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<ModelSpec> parts,
      is_target ? TargetParts(opened.model.spec, ranks) : DraftParts(opened.model.spec, ranks));
  for (size_t rank = 0; rank < session.backends.size(); ++rank) {
    const ModelSpec& part = parts[static_cast<size_t>(ranks.first) + rank];
    TANDEM_ASSIGN_OR_RETURN(EngineModel model, LoadPart(opened, part, index, session.backends[rank],
                                                        session, store, console));
    if (rank == 0) {
      (is_target ? session.target_weights : session.draft_weights) = std::move(model);
    } else {
      EngineRank& other = session.other_ranks[rank - 1];
      (is_target ? other.target : other.draft) = std::move(model);
    }
  }
  opened.source.weights.reset();  // packed: the files need not stay mapped
  return {};
}

}  // namespace tandem::apps
