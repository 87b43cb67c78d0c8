// CallIds: the ids of tool calls, unique over all answers of a server: random, and never made from
// the id of the request, which a client may choose and repeat. Owned by the front end; safe on any
// thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "base/mutex.h"
#include "serve/openai/answers/answer_format.h"

namespace tandem::serve::openai {

class CallIds {
 public:
  CallIds();  // random
  explicit CallIds(uint64_t seed) : random_(seed) {}

  // "call_" and 24 letters and digits; nine alone where the format needs them. `format` may be
  // null.
  std::string Next(const ToolFormat* format);

 private:
  Mutex mutex_;
  std::mt19937_64 random_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::serve::openai
