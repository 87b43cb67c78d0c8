#include "apps/cli/exceptions.h"

#include <fmt/core.h>

#include <filesystem>
#include <new>
#include <stdexcept>

namespace tandem::apps {

Status StatusOfException(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("memory ran out; see what `ulimit -v` and the container allow");
  } catch (const std::filesystem::filesystem_error& refused) {
    return FailedPrecondition(refused.path1().string() + ": " + refused.code().message());
  } catch (const std::runtime_error& refused) {
    return ResourceExhausted(
        fmt::format("the system refused a thread or a file: {}; see `ulimit -u`, `-n` and `-v`",
                    refused.what()));
  } catch (const std::exception& fault) {
    return Internal(fault.what());
  } catch (...) {
    return Internal("an unknown exception");
  }
}

}  // namespace tandem::apps
