#include "apps/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>
#include <utility>

namespace tandem::apps {
namespace {

std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "handlers store it");

void OnSignal(int signal) {
  g_signal = signal;
  constexpr std::string_view kStopping = "\nstopping; once more to stop at once\n";
  const int error = errno;
  if (::isatty(STDERR_FILENO) == 1) {
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kStopping.data(), kStopping.size());
  }
  errno = error;
}

}  // namespace

Interrupt::Interrupt() {
  g_signal = 0;
  struct sigaction action{};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGTERM, &action, &old_term_);
  ::sigaction(SIGINT, &action, &old_int_);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::sigaction(SIGINT, &old_int_, nullptr);
}

Status Interrupt::Check() const {
  const int signal = g_signal;
  if (signal == 0) return {};
  return Cancelled(std::string("stopped by ") + (signal == SIGINT ? "SIGINT" : "SIGTERM") +
                   "; the output folder is as it was");
}

std::function<Status(double)> Told(std::string what, const Interrupt& interrupt,
                                   const Console& console) {
  return [what = std::move(what), &interrupt, &console](double done) {
    console.Progress(what, done);
    return interrupt.Check();
  };
}

}  // namespace tandem::apps
