// FreeWord: a word that occurs in none of some texts, which a client may have written to make
// finding one slow. Time and memory are linear in the texts. The same texts give the same word. A
// plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::serve {

class FreeWord {
 public:
  // Reads the text once. The texts of one word have at most 4 GB in all.
  void Avoid(std::string_view text);
  // Letters, perhaps with digits after them.
  std::string Word() const;
  // Places that were looked at: where the letters occur.
  size_t num_places() const { return numbers_.size(); }

 private:
  std::vector<uint64_t> numbers_;  // of each place: the first digits after the letters
};

}  // namespace tandem::serve
