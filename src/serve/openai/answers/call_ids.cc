#include "serve/openai/answers/call_ids.h"

#include <string_view>

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kLetters =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

}  // namespace

CallIds::CallIds() : CallIds(uint64_t{std::random_device{}()} << 32 | std::random_device{}()) {}

std::string CallIds::Next(const ToolFormat* format) {
  const bool is_short = format != nullptr && format->short_ids;
  std::string id = is_short ? "" : "call_";
  const size_t length = id.size() + (is_short ? 9 : 24);
  const MutexLock lock(mutex_);
  while (id.size() < length) id += kLetters[random_() % kLetters.size()];
  return id;
}

}  // namespace tandem::serve::openai
