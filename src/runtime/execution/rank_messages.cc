#include "runtime/execution/rank_messages.h"

#include <cstring>
#include <tuple>
#include <type_traits>

namespace tandem {
namespace {

template <typename T>
concept Plain = std::is_trivially_copyable_v<T>;

// The values of a slot, and its lists, in the order in which they are sent.
template <typename Init>
auto ValuesOf(Init& init) {
  return std::tie(init.prompt_tokens, init.max_length, init.computed, init.layouts, init.sampling,
                  init.constrained, init.num_end_ids, init.num_bias, init.num_ban_tokens,
                  init.num_bans, init.sent_by_probability, init.sent_threshold);
}
template <typename Init>
auto ListsOf(Init& init) {
  return std::tie(init.tokens, init.lists, init.sent_drafts);
}
template <typename Plan>
auto ListsOfPlan(Plan& plan) {
  return std::tie(plan.sequences, plan.blocks, plan.copies, plan.mappings, plan.host_copies);
}

class Writer {
 public:
  explicit Writer(RankMessage& out) : out_(out) { out_.clear(); }

  template <Plain T>
  void Value(const T& value) {
    Bytes(&value, sizeof value);
  }
  template <Plain T>
  void List(std::span<const T> values) {
    Value(static_cast<uint64_t>(values.size()));
    Bytes(values.data(), values.size_bytes());
  }

 private:
  void Bytes(const void* data, size_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), first, first + bytes);
  }

  RankMessage& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : left_(message) {}

  bool complete() const { return ok_ && left_.empty(); }

  template <Plain T>
  void Value(T& value) {
    Bytes(&value, sizeof value);
  }
  template <Plain T>
  void List(std::vector<T>& values) {
    uint64_t count = 0;
    Value(count);
    ok_ = ok_ && count <= left_.size() / sizeof(T);
    if (!ok_) return;
    values.resize(count);
    Bytes(values.data(), count * sizeof(T));
  }

 private:
  void Bytes(void* data, size_t bytes) {
    ok_ = ok_ && bytes <= left_.size();
    if (!ok_ || bytes == 0) return;
    std::memcpy(data, left_.data(), bytes);
    left_ = left_.subspan(bytes);
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

template <typename Values>
void WriteValues(const Values& values, Writer& writer) {
  std::apply([&writer](const auto&... value) { (writer.Value(value), ...); }, values);
}
template <typename Lists>
void WriteLists(const Lists& lists, Writer& writer) {
  std::apply([&writer](const auto&... list) { (writer.List(std::span(list)), ...); }, lists);
}
template <typename Values>
void ReadValues(const Values& values, Reader& reader) {
  std::apply([&reader](auto&... value) { (reader.Value(value), ...); }, values);
}
template <typename Lists>
void ReadLists(const Lists& lists, Reader& reader) {
  std::apply([&reader](auto&... list) { (reader.List(list), ...); }, lists);
}

}  // namespace

void WriteCall(RankCall call, RankMessage& out) { Writer(out).Value(call); }

void WriteAddSequence(int32_t slot, const SlotInit& init, RankMessage& out) {
  Writer writer(out);
  writer.Value(RankCall::kAddSequence);
  writer.Value(slot);
  WriteValues(ValuesOf(init), writer);
  WriteLists(ListsOf(init), writer);
  writer.List(init.sent_logits);
}

void WriteRemoveSequence(int32_t slot, RankMessage& out) {
  Writer writer(out);
  writer.Value(RankCall::kRemoveSequence);
  writer.Value(slot);
}

void WriteStep(const BatchPlan& plan, RankMessage& out) {
  Writer writer(out);
  writer.Value(RankCall::kStep);
  writer.Value(plan.step);
  WriteLists(ListsOfPlan(plan), writer);
}

Status ReadMessage(std::span<const std::byte> message, RankOrder& order) {
  Reader reader(message);
  reader.Value(order.call);
  switch (order.call) {
    case RankCall::kAddSequence:
      reader.Value(order.slot);
      ReadValues(ValuesOf(order.init), reader);
      ReadLists(ListsOf(order.init), reader);
      reader.List(order.sent_logits);
      break;
    case RankCall::kRemoveSequence:
      reader.Value(order.slot);
      break;
    case RankCall::kStep:
      reader.Value(order.plan.step);
      ReadLists(ListsOfPlan(order.plan), reader);
      break;
    case RankCall::kLand:
    case RankCall::kWarmUp:
    case RankCall::kWarmedUp:
    case RankCall::kStop:
      break;
    default:
      return DataLoss("a message between ranks of an unknown kind");
  }
  if (!reader.complete()) return DataLoss("a message between ranks has another length");
  return {};
}

}  // namespace tandem
