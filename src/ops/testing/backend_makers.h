// How the op tests make the backends that they run on.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "ops/backend.h"

namespace tandem::ops {

using BackendMaker = std::function<std::unique_ptr<Backend>()>;

inline BackendMaker MakerOf(const CpuOptions& options) {
  return [options] {
    auto backend = MakeCpuBackend(options);
    return std::move(backend).value();
  };
}

inline BackendMaker MakerOf(const CudaOptions& options) {
  return [options] {
    auto backend = MakeCudaBackend(options);
    return std::move(backend).value();
  };
}

}  // namespace tandem::ops
