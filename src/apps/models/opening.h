// The opening of a session: its options are settled, its models are found and their shapes read,
// the backends of its ranks are made; nothing is loaded yet. Used by session.cc and
// session_plan.cc, by the thread that opens the session.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/models/load_model.h"
#include "apps/models/session.h"
#include "base/bound_options.h"

namespace tandem::apps {

// How Hugging Face folders are read.
struct FolderOptions {
  std::optional<DType> dtype;  // of the arithmetic; else their own
};
const BoundOptions<FolderOptions>& FolderOptionRows();

struct OpenedPair {
  Opened target;
  std::unique_ptr<Opened> draft;
  bool embedded = false;
};

// The parts of a session; nothing is loaded yet.
struct Opening {
  SessionOptions options;
  std::shared_ptr<ops::Backend> backend;
  std::vector<std::vector<std::shared_ptr<ops::Backend>>> backends;  // by replica and rank
  OpenedPair pair;
  std::shared_ptr<ProcessGroup> processes;  // null: the process is alone
  std::string ranks_why;                    // as RankChoice::why
};

// Models are fetched, and the target quantized if that is asked for and was not done before;
// without a console, which tells of it, that is an error, and the session's other processes are not
// waited for. Of an opening of a process without ranks only `processes` is there. `adjust` as
// OpenSession.
Result<Opening> Open(const OptionValues& values, SharedResources& shared, const Console* console,
                     const std::function<void(EngineOptions&)>& adjust = {});

// A dummy draft that agrees with a dummy target on a share `acceptance` of tokens.
Result<Opened> OpenDummyDraft(const SessionOptions& options, double acceptance,
                              const ModelSpec& target, ops::Backend& backend);

}  // namespace tandem::apps
