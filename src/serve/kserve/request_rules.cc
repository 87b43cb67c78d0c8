#include "serve/kserve/request_rules.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "serve/kserve/shared_memory.h"

namespace tandem::serve::kserve {
namespace {

constexpr std::string_view kReservedPrefix = "triton_";
constexpr std::string_view kClassification = "classification";

}  // namespace

Status CheckParameters(const Parameters& parameters) {
  const auto found = parameters.lower_bound(kReservedPrefix);
  if (found == parameters.end() || !found->first.starts_with(kReservedPrefix)) return {};
  return InvalidArgument(fmt::format("parameter keys starting with '{}' are reserved for internal "
                                     "use: '{}'",
                                     kReservedPrefix, Printable(found->first)))
      .WithField(found->first);
}

Result<std::optional<SharedMemoryRange>> CheckTensorParameters(std::string_view tensor,
                                                               const Parameters& parameters) {
  TANDEM_RETURN_IF_ERROR(CheckParameters(parameters));
  if (parameters.contains(kClassification)) {
    return Unimplemented(fmt::format("tensor '{}': parameter '{}' is not supported by this server",
                                     Printable(tensor), kClassification))
        .WithField(tensor);
  }
  return SharedMemoryOf(tensor, parameters);
}

}  // namespace tandem::serve::kserve
