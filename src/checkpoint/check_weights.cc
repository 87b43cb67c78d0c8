#include "checkpoint/check_weights.h"

#include "checkpoint/trtllm/fused_tensors.h"
#include "tensor/convert.h"

namespace tandem {

Result<std::vector<BadWeight>> FindNonFinite(WeightSource& source) {
  std::vector<BadWeight> bad;
  for (const FusedTensor& tensor : FusedTensors(source.spec())) {
    int64_t count = 0;
    for (const WeightRole role : tensor.roles) {
      TANDEM_ASSIGN_OR_RETURN(const Tensor values, source.Get(tensor.IdOf(role)));
      count += CountNonFinite(values);
    }
    source.Release();
    if (count > 0) bad.push_back({tensor.name, count});
  }
  return bad;
}

}  // namespace tandem
