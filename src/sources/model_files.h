// Which files of a model an engine reads: configuration, tokenizer and one set of weights. Pure
// functions; any thread.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

struct ModelFiles {
  std::vector<std::string> settings;    // configuration, tokenizer, templates
  std::string index;                    // of the weights' shards; empty: none, or one file
  std::vector<std::string> weights;     // without shards, which the index names
  std::vector<std::string> left_alone;  // code, which is never run
};

// Sorts the files directly in a Hugging Face folder; what is in none of the lists is not needed.
// Weights are taken as HfTensors looks for them: model.safetensors, its shards, pytorch_model.bin,
// its shards; without any of these those of a checkpoint or an engine (rank0.safetensors).
ModelFiles ChooseModelFiles(std::span<const std::string> names);

// The files that an index names, each once. INVALID_ARGUMENT for a name that is not one of a file
// beside the index.
Result<std::vector<std::string>> ShardsOf(std::string_view index_text);

// Whether a file is code that another server would run: .py and requirements.txt.
bool IsCode(std::string_view name);
// Whether it holds nothing that is read here, wherever it is: code, text for people, pictures,
// weights in other formats.
bool IsUnread(std::string_view name);

// Which weights the folder lacks by its own index, or all of them; empty when it is complete.
std::string MissingWeights(const std::filesystem::path& folder);

// Logs the names of files that other servers would run, if there are any.
void NameCode(std::string_view model, std::span<const std::string> names);

// Whether a name from outside may be joined to a folder: relative, inside it, of printable
// characters that every file system can store.
bool IsSafeRelativePath(std::string_view name);

}  // namespace tandem
