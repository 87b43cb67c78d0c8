// A verb of the program as data: its name, its help, its options (rows of the option table) and the
// function that does the work. From these rows come parsing (arguments.h), --help, completion and
// docs/cli.md (help.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/json_text.h"
#include "base/bound_options.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/options.h"
#include "base/status.h"

namespace tandem::apps {

// Everything a verb prints goes through here, so that --json, NO_COLOR and a missing terminal are
// decided in one place. Results go to stdout; progress to stderr.
class Console {
 public:
  // `clock` outlives the console.
  explicit Console(bool json, LogFormat log_format = LogFormat::kText,
                   const Clock& clock = kSteadyClock);

  bool json() const { return json_; }
  // A line for people; silent under --json.
  void Say(std::string_view line) const;
  // A piece of a line, flushed at once (streamed text); silent under --json.
  void SayPart(std::string_view text) const;
  // The one JSON value of --json, on a line; silent without it. Bytes that are not UTF-8 (of paths,
  // prompts) are replaced.
  template <typename Json>
  void Result(const Json& json) const {
    if (json_) Write(JsonText(json) + "\n");
  }
  // Text between values, when the one value of --json is an array that is written as it grows.
  void ResultPart(std::string_view text) const;
  // The first write to stdout that failed: a full disk, or CANCELLED with the field "stdout" where
  // its reader went away. Nothing is written after it.
  const Status& status() const { return status_; }
  // Columns of the terminal that stdout is, within reason; 80 elsewhere.
  static size_t Width();
  // "loading target 42 %": redrawn on a terminal. Where stderr is a file or a pipe, a line now and
  // then, if it takes long: each 10 %, but at most every 10 seconds and at least every minute; none
  // among log lines in JSON. Safe on any thread.
  void Progress(std::string_view what, double done) const;

 private:
  void Write(std::string_view text) const;

  // What Progress last told without a terminal.
  struct Told {
    std::string what;
    double done = 0.0;
    Nanos time{};
    bool any = false;  // a line of this work was written
  };
  bool IsDue(std::string_view what, double done) const;

  static inline const SteadyClock kSteadyClock;
  const bool json_;
  const bool terminal_;
  const bool lines_;  // of progress, among those of the log
  const Clock& clock_;
  mutable Mutex mutex_;
  mutable Told told_ TANDEM_GUARDED_BY(mutex_);
  mutable Status status_;
};

struct Command {
  std::string_view name;
  std::string_view summary;   // one line
  std::string_view examples;  // shell lines, shown at the end of --help
  std::vector<OptionSpec> options;
  Status (*run)(const OptionValues& options, Console& console);
};

// The options that every verb has.
struct CommonOptions {
  bool json = false;
  LogLevel log_level = LogLevel::kWarning;
  LogFormat log_format = LogFormat::kText;
};
const BoundOptions<CommonOptions>& CommonOptionRows();

// All verbs, in the order of --help; each with the common options.
std::span<const Command> Commands();

// Options shared by verbs, as rows to append.
std::vector<OptionSpec> Join(std::initializer_list<std::span<const OptionSpec>> parts);

// The whole program: parse, call, print errors; returns the exit code.
//   0 done; 1 our fault; 2 wrong usage or input; 3 not found; 4 broken file; 5 not on this machine
//   or out of memory, disk or stdout; 6 unavailable, cancelled or timed out
int Main(int argc, const char* const* argv);

}  // namespace tandem::apps
