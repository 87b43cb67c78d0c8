#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tandem {
namespace {

Result<NcclLibrary> LoadOnce() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return FailedPrecondition(
        "no libnccl.so.2 can be loaded, which carries what GPUs of several processes send each "
        "other: install NVIDIA's package libnccl2");
  }
  NcclLibrary nccl{};
  std::string missing;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  load(nccl.get_version, "ncclGetVersion");
  load(nccl.error_string, "ncclGetErrorString");
  load(nccl.get_unique_id, "ncclGetUniqueId");
  load(nccl.init_rank, "ncclCommInitRank");
  load(nccl.async_error, "ncclCommGetAsyncError");
  load(nccl.abort, "ncclCommAbort");
  load(nccl.group_start, "ncclGroupStart");
  load(nccl.group_end, "ncclGroupEnd");
  load(nccl.send, "ncclSend");
  load(nccl.receive, "ncclRecv");
  if (missing.empty()) return nccl;
  return FailedPrecondition(
      fmt::format("libnccl.so.2 has no {}: version 2.7 or later is needed", missing));
}

}  // namespace

Result<const NcclLibrary*> NcclLibrary::Load() {
  static const Result<NcclLibrary> library = LoadOnce();
  if (!library.ok()) return library.status();
  return &*library;
}

Result<std::string> NcclLibrary::Version() const {
  int code = 0;
  TANDEM_RETURN_IF_ERROR(StatusOf(get_version(&code), "the version of NCCL"));
  return ShowNcclVersion(code);
}

Status NcclLibrary::StatusOf(int error, const char* what) const {
  if (error == kSuccess) return {};
  return Unavailable(fmt::format("{}: NCCL: {}", what, error_string(error)));
}

std::string ShowNcclVersion(int code) {
  // 2.9 and later have two digits for the minor number.
  if (code >= 10000) {
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  }
  return fmt::format("{}.{}.{}", code / 1000, code / 100 % 10, code % 100);
}

}  // namespace tandem
