// Runs a fuzz target without a fuzzer: on each file of a corpus, and on random changes of them, the
// same in each run.
//   NAME CORPUS_FOLDER MUTATIONS
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Random = std::mt19937_64;

void RunOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

size_t Below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

// One change: a byte, a piece left out, a piece twice, or a piece of another file.
void Change(Random& random, const std::string& other, std::string& input) {
  const size_t at = Below(random, input.size() + 1);
  const size_t length = Below(random, std::min<size_t>(input.size() - at, 40) + 1);
  switch (random() % 4) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(random());
      break;
    case 1:
      input.erase(at, length);
      break;
    case 2:
      input.insert(at, input.substr(at, length));
      break;
    default:
      input.insert(at, other.substr(Below(random, other.size() + 1), Below(random, 40)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER MUTATIONS\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    RunOne(corpus.back());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s holds no file\n", argv[1]);
    return 2;
  }
  Random random(1);
  for (int left = std::stoi(argv[2]); left > 0; --left) {
    std::string input = corpus[Below(random, corpus.size())];
    for (size_t changes = 1 + Below(random, 4); changes > 0; --changes) {
      Change(random, corpus[Below(random, corpus.size())], input);
    }
    RunOne(input);
  }
  std::printf("%zu files and %s changes of them\n", corpus.size(), argv[2]);
  return 0;
}
