// The embedded dictionary's questions, in the tokens of a session's target.
#include <utility>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/models/dictionary.h"

namespace tandem::apps {

Result<std::vector<Request>> DictionaryQuestions(const Session& session, size_t count) {
  TANDEM_ASSIGN_OR_RETURN(
      auto codec, serve::LoadTextCodec(session.target.folder, session.target.spec.vocab_size));
  TANDEM_ASSIGN_OR_RETURN(const Dictionary dictionary, Dictionary::Open(std::move(codec)));
  return dictionary.Questions(count);
}

}  // namespace tandem::apps
