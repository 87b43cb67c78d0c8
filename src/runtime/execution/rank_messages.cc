#include "runtime/execution/rank_messages.h"

#include <tuple>

namespace tandem {
namespace {

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

template <typename Values>
void WriteValues(const Values& values, WireWriter& writer) {
  std::apply([&writer](const auto&... value) { (writer.Value(value), ...); }, values);
}
template <typename Lists>
void WriteLists(const Lists& lists, WireWriter& writer) {
  std::apply([&writer](const auto&... list) { (writer.List(std::span(list)), ...); }, lists);
}
template <typename Values>
void ReadValues(const Values& values, WireReader& reader) {
  std::apply([&reader](auto&... value) { (reader.Value(value), ...); }, values);
}
template <typename Lists>
void ReadLists(const Lists& lists, WireReader& reader) {
  std::apply([&reader](auto&... list) { (reader.List(list), ...); }, lists);
}

}  // namespace

void WriteCall(RankCall call, RankMessage& out) { WireWriter(out).Value(call); }

void WriteAddSequence(int32_t slot, const SlotInit& init, RankMessage& out) {
  WireWriter writer(out);
  writer.Value(RankCall::kAddSequence);
  writer.Value(slot);
  WriteValues(ValuesOf(init), writer);
  WriteLists(ListsOf(init), writer);
  writer.List(init.sent_logits);
}

void WriteRemoveSequence(int32_t slot, RankMessage& out) {
  WireWriter writer(out);
  writer.Value(RankCall::kRemoveSequence);
  writer.Value(slot);
}

void WriteStep(const BatchPlan& plan, RankMessage& out) {
  WireWriter writer(out);
  writer.Value(RankCall::kStep);
  writer.Value(plan.step);
  WriteLists(ListsOfPlan(plan), writer);
}

Status ReadMessage(std::span<const std::byte> message, RankOrder& order) {
  WireReader reader(message);
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
