// How the models of a repository belong together, by their configurations alone: which engine each
// of them works with, and what an engine takes from the others. Pure.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "serve/kserve/models/folder_models.h"
#include "serve/kserve/models/generation_request.h"

namespace tandem::serve::kserve {

using FolderModels = std::map<std::string, FolderModel>;  // by name

// One model's.
struct ModelLinks {
  std::string engine;              // that it is or works with; empty: none
  std::vector<std::string> parts;  // models that it cannot be without
  bool is_decoupled = false;
  GenerationDefaultsOfModel defaults;
  // Of an engine:
  std::string draft;               // the model that drafts for it; empty: none
  std::string tokenizer;           // a folder or a hub's id; empty: its own
  std::vector<std::string> notes;  // what is passed over
};

// The links of every model. Names in it may be of models that are not in the repository. A stage
// that may belong to several engines belongs to that of a preferred chain, or else to a preferred
// engine, before it belongs to any other.
std::map<std::string, ModelLinks> LinkModels(const FolderModels& models,
                                             const std::set<std::string>& preferred = {});

}  // namespace tandem::serve::kserve
