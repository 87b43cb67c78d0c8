#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>

#include "apps/command.h"

namespace {

// Descriptors 0 to 2 are taken, so that no socket or file gets a number that others write to.
// Writing to one that was closed is an error, which is what the caller asked for.
void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    if (::open("/dev/null", O_RDONLY) < 0) std::_Exit(5);  // the lowest free number: fd
  }
}

// Where memory or threads run out on a thread that nothing can be thrown through.
[[noreturn]] void EndWithSentence() {
  const bool unwinding = std::uncaught_exceptions() > 0;
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      std::fputs("tandem: memory ran out; see what `ulimit -v` and the container allow\n", stderr);
      std::_Exit(5);
    } catch (const std::runtime_error& refused) {
      std::fprintf(stderr,
                   "tandem: the system refused a thread or a file: %s; see `ulimit -u`, `-n` and "
                   "`-v`\n",
                   refused.what());
      std::_Exit(5);
    } catch (const std::exception& fault) {
      std::fprintf(stderr, "tandem: ended by %s\n", fault.what());
    } catch (...) {
    }
  } else if (unwinding) {
    std::fputs("tandem: the system refused a thread or memory; see `ulimit -u` and `-v`\n", stderr);
    std::_Exit(5);
  }
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardStreams();
  std::set_terminate(EndWithSentence);
  // A client that went away and a file that reached its limit (`ulimit -f`) are errors of one
  // write, not the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  return tandem::apps::Main(argc, argv);
}
