// Interrupt: while one lives, the first SIGINT or SIGTERM asks the verb to stop, and the verb
// checks for it between two pieces of its work; a second signal ends the program at once. At most
// one lives at a time, on the main thread; Check is safe on any thread.
#pragma once

#include <csignal>
#include <functional>
#include <string>

#include "apps/cli/command.h"
#include "base/status.h"

namespace tandem::apps {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // CANCELLED once a signal has come; the message names it.
  Status Check() const;

 private:
  struct sigaction old_term_{};
  struct sigaction old_int_{};
};

// Tells the share done, and then whether to stop. Both arguments outlive the result.
std::function<Status(double)> Told(std::string what, const Interrupt& interrupt,
                                   const Console& console);

}  // namespace tandem::apps
