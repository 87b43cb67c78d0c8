// The inference protocol (KServe v2) over HTTP with Triton's extensions: health, metadata, the
// repository, statistics, inference, generation and log settings. It only translates between the
// wire and the repository.
#pragma once

#include <cstddef>

#include "serve/http/router.h"
#include "serve/kserve/repository.h"

namespace tandem::serve::kserve {

// `models` outlives the router.
FrontEnd MakeFrontEnd(Repository& models, size_t body_limit);

}  // namespace tandem::serve::kserve
