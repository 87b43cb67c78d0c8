// The texts that `tandem quantize` calibrates with: lines of a file, or the embedded dictionary's
// questions and answers, which need no network. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "serve/text_codec.h"

namespace tandem::apps {

struct CalibrationTexts {
  std::string origin;  // for people: the file, or what was taken in its place
  std::vector<std::vector<int32_t>> samples;
};

// At most `size` samples of at most `longest` tokens. `dataset`: a text file (a sample a line) or a
// .jsonl file (of objects with the text under "text", "article" or "prompt"); the name of anything
// that is not a file on this machine means the embedded texts.
Result<CalibrationTexts> ReadCalibrationTexts(const std::string& dataset, int64_t size,
                                              int64_t longest, const serve::TextCodec& codec);

}  // namespace tandem::apps
