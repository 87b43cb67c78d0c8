// The events of an engine's cache over HTTP, in the shape of TensorRT-LLM's server: POST (or GET)
// /kv_cache_events takes them from the model for requests that name none, /kv_cache_events/MODEL
// from another. An answer holds the oldest ones, at most kMostKvEvents; an empty list: there are no
// more. Each event goes to one reader.
#pragma once

#include "serve/http/router.h"
#include "serve/model_registry.h"

namespace tandem::serve {

inline constexpr size_t kMostKvEvents = 1024;

// `models` outlives the router.
FrontEnd MakeKvEventsFrontEnd(const ModelRegistry& models);

}  // namespace tandem::serve
