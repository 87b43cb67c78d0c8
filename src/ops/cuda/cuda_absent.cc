// The CUDA backend of a build without a CUDA compiler: every call returns an error.
#include "ops/backend.h"

namespace tandem::ops {

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& /*options*/) {
  return Unavailable("this program was built without CUDA; ./setup --cuda, then build it again");
}

int NumCudaDevices() { return 0; }

std::vector<CudaDevice> CudaDevices() { return {}; }

}  // namespace tandem::ops
