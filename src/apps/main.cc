#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "apps/cli/command.h"
#include "apps/cli/exceptions.h"

namespace {

using tandem::Code;
using tandem::Internal;
using tandem::ResourceExhausted;
using tandem::Status;
using tandem::apps::StatusOfException;

constexpr int kRefusedBySystem = 5;  // as command.h says

// Makes sure that descriptors 0 to 2 are open, so that no socket or file gets a number that others
// write to. Writing to one that was closed stays an error, as the caller intended.
void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number, which is fd.
    if (::open("/dev/null", O_RDONLY) < 0) std::_Exit(kRefusedBySystem);
  }
}

// Memory or threads ran out on a thread where no exception can be caught, before main(), or during
// the cleanup after another error.
[[noreturn]] void EndWithSentence() {
  void* const probe = std::malloc(size_t{4} << 10);
  if (probe == nullptr) {  // not enough for an exception and its message
    constexpr std::string_view kSentence =
        "tandem: memory ran out; see what `ulimit -v` and the container allow\n";
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kSentence.data(), kSentence.size());
    std::_Exit(kRefusedBySystem);
  }
  std::free(probe);
  const std::exception_ptr error = std::current_exception();
  Status status = error != nullptr ? StatusOfException(error) : Internal("std::terminate");
  if (error == nullptr && std::uncaught_exceptions() > 0) {
    status = ResourceExhausted("the system refused a thread or memory; see `ulimit -u` and `-v`");
  }
  std::fprintf(stderr, "tandem: %s\n", status.message().c_str());
  if (status.code() == Code::kInternal) std::abort();
  std::_Exit(kRefusedBySystem);
}

// Runs before every other initialization of the program, some of which allocates.
[[gnu::constructor(101)]] void SetTerminateHandler() { std::set_terminate(EndWithSentence); }

}  // namespace

int main(int argc, char** argv) {
  OpenStandardStreams();
  // A client that went away and a file that reached its limit (`ulimit -f`) are errors of one
  // write, not the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  return tandem::apps::Main(argc, argv);
}
