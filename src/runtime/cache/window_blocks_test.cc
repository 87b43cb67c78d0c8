// Owners, references and eviction of window blocks, without the tree.
#include "runtime/cache/window_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kNone = WindowBlocks::kNone;

class WindowBlocksTest : public ::testing::Test {
 protected:
  ~WindowBlocksTest() override { windows_.CheckIntegrity(); }

  // For an owner; expects that it was taken from `from`.
  WindowBlockId Take(BlockId owner, BlockId from = kNone) {
    BlockId evicted_from = 77;
    const WindowBlockId window = windows_.Take(owner, evicted_from);
    EXPECT_EQ(evicted_from, from);
    EXPECT_EQ(windows_.OwnerOf(window), owner);
    EXPECT_EQ(windows_.ReferencesOf(window), 1);
    windows_.CheckIntegrity();
    return window;
  }
  std::vector<WindowMapping> Mappings() {
    std::vector<WindowMapping> mappings;
    windows_.MoveMappings(mappings);
    return mappings;
  }

  WindowBlocks windows_{3};
};

TEST_F(WindowBlocksTest, TheLastReferenceFreesOneWhoseOwnerIsNotInTheTree) {
  const WindowBlockId window = Take(10);
  windows_.Reference(window);
  EXPECT_FALSE(windows_.Unreference(window, false));
  EXPECT_EQ(windows_.num_referenced(), 1);
  EXPECT_TRUE(windows_.Unreference(window, false));
  EXPECT_EQ(windows_.num_referenced(), 0);
  EXPECT_EQ(windows_.OwnerOf(window), kNone);
}

TEST_F(WindowBlocksTest, OneOfABlockInTheTreeStaysUntilTheFreeOnesAreUsed) {
  const WindowBlockId window = Take(10);
  EXPECT_FALSE(windows_.Unreference(window, true));
  EXPECT_EQ(windows_.num_referenced(), 0);
  EXPECT_EQ(windows_.OwnerOf(window), 10);
  EXPECT_NE(Take(11), window);
  EXPECT_NE(Take(12), window);
  EXPECT_EQ(Take(13, 10), window);
  EXPECT_EQ(windows_.num_referenced(), 3);
}

TEST_F(WindowBlocksTest, TheLeastRecentlyUsedGoesFirst) {
  const WindowBlockId a = Take(10), b = Take(11), c = Take(12);
  for (const WindowBlockId window : {b, a, c}) windows_.Unreference(window, true);
  windows_.Reference(b);  // found again
  EXPECT_EQ(Take(20, 10), a);
  windows_.Unreference(b, true);
  EXPECT_EQ(Take(21, 12), c);
  EXPECT_EQ(Take(22, 11), b);
}

TEST_F(WindowBlocksTest, WhenItsOwnerLeavesTheTreeOneThatIsInUseStaysSo) {
  const WindowBlockId used = Take(10), cached = Take(11);
  windows_.Unreference(cached, true);
  windows_.Disown(cached);
  windows_.Disown(used);
  windows_.CheckIntegrity();
  EXPECT_EQ(windows_.OwnerOf(cached), kNone);
  EXPECT_EQ(windows_.OwnerOf(used), kNone);
  EXPECT_EQ(windows_.num_referenced(), 1);
  Take(12);
  Take(13);
  EXPECT_TRUE(windows_.Unreference(used, false));
  Take(14);
}

TEST_F(WindowBlocksTest, MappingsAreToldOnceAndInOrder) {
  const WindowBlockId a = Take(10), b = Take(11);
  windows_.Move(a, 20);
  EXPECT_THAT(Mappings(),
              ElementsAre(WindowMapping{10, a}, WindowMapping{11, b}, WindowMapping{20, a}));
  EXPECT_EQ(windows_.OwnerOf(a), 20);
  EXPECT_THAT(Mappings(), ElementsAre());
}

TEST_F(WindowBlocksTest, ToTakeMoreThanThereAreIsABug) {
  for (const BlockId owner : {10, 11, 12}) Take(owner);
  BlockId evicted_from = kNone;
  EXPECT_DEATH(windows_.Take(13, evicted_from), "3 window blocks are fewer than sequences need");
}

TEST_F(WindowBlocksTest, ToReleaseOneTooOftenIsABug) {
  const WindowBlockId window = Take(10);
  windows_.Unreference(window, true);
  EXPECT_DEATH(windows_.Unreference(window, true), "is released too often");
}

}  // namespace
}  // namespace tandem
