// Nothing allocates in the steady state: malloc is counted on every thread over 1,000 steps of an
// engine with drafts, penalties and log-probabilities, between the events of one read and the next.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/cache/kv_cache.h"
#include "runtime/testing/steady_engine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TANDEM_COUNTS_MALLOC 0  // the sanitizer has its own malloc
#else
#define TANDEM_COUNTS_MALLOC 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
}  // namespace

#if TANDEM_COUNTS_MALLOC
namespace {
void Count() {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
}
}  // namespace

// Names and parameters are glibc's: its own reserved ones.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-inconsistent-declaration-parameter-name)
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  Count();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  Count();
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Count();
  return __libc_memalign(alignment, bytes);
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-inconsistent-declaration-parameter-name)
#endif

namespace tandem {
namespace {

class AllocationTest : public testing::TestWithParam<int32_t> {};

TEST_P(AllocationTest, AThousandStepsAllocateNothing) {
  if (!TANDEM_COUNTS_MALLOC) GTEST_SKIP() << "malloc is the sanitizer's";
  SteadyClock clock;
  EngineOptions options;
  options.steps_in_flight = GetParam();
  options.executor = TestExecutor();
  const auto engine = MakeSteadyEngine(options, {&TestBackend()}, clock);
  Event event;
  for (int i = 0; i < 100; ++i) StepAndRead(*engine, event);
  const EngineStats before = engine->Stats();
  counting = true;
  for (int i = 0; i < 1000; ++i) StepAndRead(*engine, event);
  counting = false;
  const EngineStats after = engine->Stats();
  EXPECT_EQ(allocations.exchange(0), 0);
  EXPECT_EQ(after.steps - before.steps, 1000);
  EXPECT_EQ(after.running, 4);
  EXPECT_GT(after.drafts_proposed - before.drafts_proposed, 1000);
}

TEST(CacheAllocationTest, EvictedBlocksGoToTheHostAndAreToldOfWithoutAnAllocation) {
  if (!TANDEM_COUNTS_MALLOC) GTEST_SKIP() << "malloc is the sanitizer's";
  KvEvents events(/*max_events=*/16, /*device_blocks=*/8, /*host_blocks=*/12, /*block_tokens=*/4,
                  /*secret=*/1);
  KvCache cache({.num_blocks = 8, .block_tokens = 4, .num_host_blocks = 12, .events = &events});
  std::vector<int32_t> tokens(16);
  std::vector<BlockId> blocks;
  std::vector<HostCopy> copies;
  blocks.reserve(8);
  copies.reserve(8);
  counting = true;
  for (int32_t i = 0; i < 1000; ++i) {
    std::ranges::fill(tokens, i % 7);
    ASSERT_TRUE(cache.Allocate(4, blocks));
    cache.MoveHostCopies(copies);
    cache.Publish(tokens, blocks, {16, 8});
    cache.Release(blocks);
    blocks.clear();
    copies.clear();
  }
  counting = false;
  EXPECT_EQ(allocations.exchange(0), 0);
  EXPECT_GT(cache.Stats().offloads, 1000);
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, AllocationTest, testing::Values(0, 1),
                         [](const testing::TestParamInfo<int32_t>& info) {
                           return std::to_string(info.param);
                         });

}  // namespace
}  // namespace tandem
