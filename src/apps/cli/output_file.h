// OutputFile: while it lives, everything that the process would print on stdout and stderr is
// appended to a file. Owned by the verb that asked for it; made and destroyed while no other thread
// prints.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace tandem::apps {

class OutputFile {
 public:
  // INVALID_ARGUMENT with the system's reason when the file cannot be opened; stdout and stderr are
  // then as before.
  static Result<std::unique_ptr<OutputFile>> Open(const std::string& path);
  // What is printed afterwards goes where it went before.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

 private:
  OutputFile(int file, int old_stdout, int old_stderr);

  const int old_stdout_;  // descriptors that keep what was open before
  const int old_stderr_;
};

}  // namespace tandem::apps
