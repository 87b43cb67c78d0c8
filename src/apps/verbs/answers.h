// The answers of `tandem run` as it writes them: run.py's lines, JSON, and token ids in a file.
// Used by one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "apps/cli/command.h"
#include "apps/verbs/prompts.h"
#include "base/file.h"
#include "serve/text_request.h"

namespace tandem::apps {

// "Output [Text 0 Beam 0]", and with several answers "Output [Text 0 Seq 1 Beam 0]".
std::string OutputName(size_t prompt, size_t choice, bool several);

// The token ids of each answer, one line per answer.
std::string CsvLines(const serve::TextResult& result);

// Writes the answers, each when it is finished, in the order of the prompts.
class AnswerWriter {
 public:
  // An empty `csv_path` means that no file of token ids is written.
  static Result<AnswerWriter> Open(const std::string& csv_path, const Console& console);

  Status Write(const Prompt& prompt, const serve::TextResult& result);
  // Call after the last answer, or with the error that ended the run early; that error is returned
  // with a sentence that says where the finished answers are.
  Status Finish(const Status& failed);

 private:
  explicit AnswerWriter(const Console& console) : console_(console) {}

  const Console& console_;
  std::string csv_path_;
  std::unique_ptr<AtomicFileWriter> csv_;
  size_t written_ = 0;  // prompts
  size_t lines_ = 0;    // answers that are whole in the file
};

}  // namespace tandem::apps
