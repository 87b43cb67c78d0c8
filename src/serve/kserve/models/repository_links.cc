#include "serve/kserve/models/repository_links.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::serve::kserve {
namespace {

EngineRole RoleOf(const FolderModel& model) { return RowOf(model.parameters.kind).role; }

class Linker {
 public:
  Linker(const FolderModels& models, const std::set<std::string>& preferred)
      : models_(models), preferred_(preferred) {}

  ModelLinks LinksOf(const FolderModel& model) const {
    ModelLinks links;
    links.engine = EngineOf(model);
    links.parts = PartsOf(model, links.engine);
    const FolderModel* engine = Find(links.engine);
    // A chain may give several responses when its engine may.
    const bool is_chain = !model.steps.empty() && engine != nullptr;
    links.is_decoupled = (is_chain ? *engine : model).parameters.decoupled;
    links.defaults = DefaultsOf(model, engine);
    if (RoleOf(model) != EngineRole::kEngine) return links;
    links.draft = DraftOf(model.name);
    NameTokenizer(model, links);
    return links;
  }

 private:
  const FolderModel* Find(const std::string& name) const {
    const auto found = models_.find(name);
    return found == models_.end() ? nullptr : &found->second;
  }
  bool IsEngine(const std::string& name) const {
    const FolderModel* model = Find(name);
    return model != nullptr && RoleOf(*model) == EngineRole::kEngine;
  }

  // The engine that a chain has among its steps; empty: none.
  std::string EngineOfChain(const FolderModel& chain) const {
    const auto step = std::ranges::find_if(
        chain.steps, [this](const std::string& name) { return IsEngine(name); });
    return step == chain.steps.end() ? "" : *step;
  }

  std::string EngineOf(const FolderModel& model) const {
    if (RoleOf(model) == EngineRole::kEngine) return model.name;
    if (RoleOf(model) == EngineRole::kNone) return {};
    if (!model.parameters.target_model.empty()) return model.parameters.target_model;
    if (std::string engine = EngineOfChain(model); !engine.empty()) return engine;
    // A stage: the engine of a chain that it is part of.
    std::string found;
    int best = 0;
    for (const auto& [name, chain] : models_) {
      if (std::ranges::count(chain.steps, model.name) == 0) continue;
      const std::string engine = EngineOfChain(chain);
      if (engine.empty()) continue;
      const int rank = preferred_.contains(name) ? 3 : preferred_.contains(engine) ? 2 : 1;
      if (rank > best) found = engine;
      best = std::max(best, rank);
    }
    return found.empty() ? MainEngine() : found;
  }

  // A preferred engine, else one that drafts for no other, else any; empty: there is none.
  std::string MainEngine() const {
    std::string found;
    int best = 0;
    for (const auto& [name, model] : models_) {
      if (!IsEngine(name)) continue;
      const int rank = 1 + (IsDraft(name) ? 0 : 1) + (preferred_.contains(name) ? 2 : 0);
      if (rank > best) found = name;
      best = std::max(best, rank);
    }
    return found;
  }

  static std::vector<std::string> PartsOf(const FolderModel& model, const std::string& engine) {
    if (!model.steps.empty()) return model.steps;
    if (engine.empty() || engine == model.name) return {};
    return {engine};
  }

  bool IsDraft(const std::string& engine) const {
    return std::ranges::any_of(models_, [&engine](const auto& row) {
      return row.second.parameters.draft_model == engine;
    });
  }
  std::string DraftOf(const std::string& target) const {
    for (const auto& [name, model] : models_) {
      const ModelParameters& parameters = model.parameters;
      if (parameters.target_model == target && !parameters.draft_model.empty()) {
        return parameters.draft_model;
      }
    }
    return {};
  }

  // The stage that belongs to the engine, else any of that kind; null if there is none.
  const FolderModel* StageOf(ModelKind kind, const std::string& engine) const {
    const FolderModel* any = nullptr;
    for (const auto& [name, model] : models_) {
      if (model.parameters.kind != kind) continue;
      if (EngineOf(model) == engine) return &model;
      any = &model;
    }
    return any;
  }

  GenerationDefaultsOfModel DefaultsOf(const FolderModel& model, const FolderModel* engine) const {
    GenerationDefaultsOfModel defaults = {.exclude_input = false};
    if (engine == nullptr) return defaults;
    // Clients that run the speculative loop themselves find a pair's answers after the prompts;
    // what the configuration says is for the text models.
    const bool in_pair = IsDraft(model.name) || !DraftOf(model.name).empty();
    defaults.exclude_input = !in_pair && engine->parameters.exclude_input_in_output;
    const auto stage_of = [&](ModelKind kind) {
      return model.parameters.kind == kind ? &model : StageOf(kind, engine->name);
    };
    if (const FolderModel* stage = stage_of(ModelKind::kPreprocessing)) {
      defaults.add_special_tokens = stage->parameters.add_special_tokens;
    }
    if (const FolderModel* stage = stage_of(ModelKind::kPostprocessing)) {
      defaults.skip_special_tokens = stage->parameters.skip_special_tokens;
    }
    return defaults;
  }

  // The first that the engine and its stages name.
  void NameTokenizer(const FolderModel& engine, ModelLinks& links) const {
    links.tokenizer = engine.parameters.tokenizer_dir;
    for (const ModelKind kind : {ModelKind::kPreprocessing, ModelKind::kPostprocessing}) {
      const FolderModel* stage = StageOf(kind, engine.name);
      if (stage == nullptr || stage->parameters.tokenizer_dir.empty()) continue;
      const std::string& asked = stage->parameters.tokenizer_dir;
      if (links.tokenizer.empty()) links.tokenizer = asked;
      if (asked == links.tokenizer) continue;
      links.notes.push_back(
          fmt::format("{}: parameter tokenizer_dir: \"{}\" is passed over: text goes in and out of "
                      "{} by one tokenizer, \"{}\"",
                      stage->name, asked, engine.name, links.tokenizer));
    }
  }

  const FolderModels& models_;
  const std::set<std::string>& preferred_;
};

}  // namespace

std::map<std::string, ModelLinks> LinkModels(const FolderModels& models,
                                             const std::set<std::string>& preferred) {
  const Linker linker(models, preferred);
  std::map<std::string, ModelLinks> links;
  for (const auto& [name, model] : models) links.emplace(name, linker.LinksOf(model));
  return links;
}

}  // namespace tandem::serve::kserve
