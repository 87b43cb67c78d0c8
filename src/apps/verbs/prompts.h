// The prompts of `tandem run`: texts from the command line, and files of texts or token ids. Plain
// values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::apps {

// A prompt: text to show, and the input for the service.
struct Prompt {
  std::string shown;
  std::vector<int32_t> tokens;  // empty: to be made from the text
};

// "1, 2,3": non-negative integers, nothing else.
Result<std::vector<int32_t>> ParseTokenLine(std::string_view line);

// The texts, then the prompts of `file` unless that is empty: --input_text and --input_file.
// INVALID_ARGUMENT names the file and the line.
Result<std::vector<Prompt>> ReadPrompts(const std::vector<std::string>& texts,
                                        const std::string& file);

}  // namespace tandem::apps
