#include "apps/models/load_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "model/rank_source.h"

namespace tandem::apps {
namespace {

// Whether several ranks have the same of the model, so that they must compute the same bits.
bool IsRepeated(const SessionOptions& options, const ModelSpec& part) {
  const RankPlace& place = part.place;
  return !place.apart && options.ranks.count() > place.ranks * place.stages;
}

// A rank's part is cut from the whole model, but for a dummy, whose weights are made where they
// lie: a rank's share of all layers, of which its stage takes its own.
Result<std::unique_ptr<WeightSource>> SourceOfPart(Opened& opened, const ModelSpec& part,
                                                   ops::Backend& backend) {
  const bool is_there = part.place.is_whole() && opened.dummy && opened.dummy->backend == &backend;
  if (!opened.dummy || is_there || !part.place.has_layers()) {
    return std::unique_ptr<WeightSource>(
        std::make_unique<RankSource>(*opened.source.weights, part));
  }
  DummyOptions options = *opened.dummy;
  options.backend = &backend;
  TANDEM_ASSIGN_OR_RETURN(ModelSpec share,
                          RankSpec(opened.model.spec, {.rank = part.place.rank,
                                                       .ranks = part.place.ranks,
                                                       .whole_experts = part.place.whole_experts}));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DummySource> made,
                          DummySource::FromSpec(std::move(share), options));
  return std::unique_ptr<WeightSource>(std::make_unique<RankSource>(std::move(made), part));
}

// How people are told which part of which replica it is.
std::string NameOfPart(const SessionOptions& options, const ModelSpec& part, size_t replica) {
  std::string name = options.replicas.count == 1 ? "" : fmt::format(", replica {}", replica);
  if (part.place.stages > 1) name += fmt::format(", stage {}", part.place.stage + 1);
  if (part.place.ranks > 1) name += fmt::format(", rank {}", part.place.rank);
  return name;
}

// The weights of a rank, whose part of the model is `part`.
Result<EngineModel> LoadPart(Opened& opened, const ModelSpec& part, ModelIndex index,
                             const std::shared_ptr<ops::Backend>& backend, size_t replica,
                             const Session& session, WeightStore& store, Console& console) {
  EngineModel model{.weights = nullptr, .name = opened.model.name};
  const int64_t positions = PositionsOf(opened.model.spec, session.options.engine);
  const std::string key = StoreKeyOf(session.options, opened, part, index, *backend);
  model.weights = store.Find(key, positions);
  if (model.weights != nullptr) return model;
  const std::string name = model.name + NameOfPart(session.options, part, replica);
  AskedFormat format = FormatOf(session.options, index);
  format.same_everywhere = IsRepeated(session.options, part);
  const Turn turn(session.replicas[replica].turns.get());
  // A GPU is a thread's, and the thread's last one was another rank's.
  if (backend->device().kind == Device::Kind::kCuda) backend->BindThread();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                          SourceOfPart(opened, part, *backend));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Weights> loaded,
                          LoadWeights(
                              *source, *backend, positions,
                              [&](double done) {
                                if (!part.place.has_layers()) return;
                                console.Progress("loading " + name, done);
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
  if (place.whole_experts) key += ", by expert";
  if (place.apart) key += fmt::format(", from rank {} of {}", place.first, options.ranks.count());
  if (!place.has_layers()) key += ", nothing of it";
  return key;
}

Status LoadModel(Opened& opened, ModelIndex index, Session& session, WeightStore& store,
                 Console& console) {
  const bool is_target = index == ModelIndex::kTarget;
  const RankOptions& ranks = session.options.ranks;
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<ModelSpec> parts,
      is_target ? TargetParts(opened.model.spec, ranks) : DraftParts(opened.model.spec, ranks));
  if (parts.front().place.whole_experts && ranks.experts == 0) {
    LogInfo("{}: each rank has some of the experts, whole: they cannot be split by their neurons",
            opened.model.name);
  }
  // Weights that are packed for one share of a CPU are packed for the others.
  const bool shares = session.backend->device().kind == Device::Kind::kCpu;
  const auto place = [&](size_t replica, size_t rank) -> EngineModel& {
    SessionReplica& own = session.replicas[replica];
    if (rank == 0) return is_target ? own.target_weights : own.draft_weights;
    EngineRank& other = own.other_ranks[rank - 1];
    return is_target ? other.target : other.draft;
  };
  for (size_t replica = 0; replica < session.replicas.size(); ++replica) {
    for (size_t rank = 0; rank < session.replicas[replica].backends.size(); ++rank) {
      if (replica > 0 && shares) {
        place(replica, rank) = place(0, rank);
        continue;
      }
      TANDEM_ASSIGN_OR_RETURN(
          place(replica, rank),
          LoadPart(opened, parts[static_cast<size_t>(ranks.first) + rank], index,
                   session.replicas[replica].backends[rank], replica, session, store, console));
    }
  }
  opened.source.weights.reset();  // packed: the files need not stay mapped
  return {};
}

}  // namespace tandem::apps
