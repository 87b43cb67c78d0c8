// What a slot and a step are given has no pointers, so that it can be sent.
#include "runtime/execution/slot_init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <type_traits>

#include "runtime/scheduling/batch_plan.h"

namespace tandem {
namespace {

static_assert(std::is_trivially_copyable_v<SequencePlan> &&
              std::is_trivially_copyable_v<SamplingParams>);

TEST(SlotInit, HoldsTheListsOfARequestAsValues) {
  Request request;
  request.end_ids = {2, 3};
  request.logit_bias = {{7, 1.5f}, {8, -2.0f}};
  request.banned_sequences = {{4}, {5, 6}};
  const int32_t up = std::bit_cast<int32_t>(1.5f);
  const int32_t down = std::bit_cast<int32_t>(-2.0f);
  SlotInit init;
  for (int i = 0; i < 2; ++i) {  // the second time over the first
    init.SetLists(request);
    EXPECT_THAT(init.lists, testing::ElementsAre(2, 3, 7, 8, up, down, 4, 5, 6, 1, 3));
    EXPECT_EQ(init.num_end_ids, 2);
    EXPECT_EQ(init.num_bias, 2);
    EXPECT_EQ(init.num_ban_tokens, 3);
    EXPECT_EQ(init.num_bans, 2);
  }
  request.ignore_eos = true;
  init.SetLists(request);
  EXPECT_THAT(init.lists, testing::ElementsAre(7, 8, up, down, 4, 5, 6, 1, 3));
  EXPECT_EQ(init.num_end_ids, 0);
}

}  // namespace
}  // namespace tandem
