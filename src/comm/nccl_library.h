// What is used of NCCL, which is loaded when it is first asked for: the program is not linked to
// it, and its header need not be there. Used only in comm.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "base/status.h"

struct CUstream_st;

namespace tandem {

struct NcclLibrary {
  using Comm = void*;
  using Stream = CUstream_st*;
  // Names a communicator that is about to be made. Passed by value.
  struct UniqueId {
    char bytes[128];
  };
  // Every function returns kSuccess or an error, which error_string describes.
  static constexpr int kSuccess = 0;
  static constexpr int kBytes = 0;  // the type of elements, of which a call has a number

  int (*get_version)(int* version);
  const char* (*error_string)(int error);
  int (*get_unique_id)(UniqueId* id);
  int (*init_rank)(Comm* comm, int size, UniqueId id, int rank);
  int (*async_error)(Comm comm, int* error);
  int (*abort)(Comm comm);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* from, size_t count, int type, int peer, Comm comm, Stream stream);
  int (*receive)(void* to, size_t count, int type, int peer, Comm comm, Stream stream);

  // The libnccl.so.2 that programs of this machine load; it stays for good, because its threads may
  // have started. FAILED_PRECONDITION without one, or when a function is missing. Any thread.
  static Result<const NcclLibrary*> Load();

  // The calls of call(), which returns an error of NCCL, as one; the first error.
  template <typename Call>
  int Group(const Call& call) const {
    const int started = group_start();
    const int error = started == kSuccess ? call() : started;
    const int ended = group_end();
    return error == kSuccess ? ended : error;
  }

  // "2.21.5".
  Result<std::string> Version() const;
  Status StatusOf(int error, const char* what) const;
};

// For what get_version gives.
std::string ShowNcclVersion(int code);

}  // namespace tandem
