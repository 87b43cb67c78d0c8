#include "comm/gpu_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/nccl_library.h"
#include "ops/backend.h"

namespace tandem {
namespace {

using testing::ElementsAre;

TEST(GpuLinks, PairsWithTheSameLinkAreOneLine) {
  const GpuLinks links = {
      .num_gpus = 3,
      .links = {
          {.first = 0, .second = 1, .can_read = true, .has_atomics = true},
          {.first = 0, .second = 2, .can_read = true, .has_atomics = false, .performance_rank = 1},
          {.first = 1, .second = 2, .can_read = true, .has_atomics = true}}};
  EXPECT_THAT(DescribeLinks(links),
              ElementsAre("0-1, 1-2: NVLink, each reads the other's memory (performance rank 0)",
                          "0-2: PCIe, each reads the other's memory (performance rank 1)"));
}

TEST(GpuLinks, APairThatCannotBeRanksIsNamed) {
  const GpuLinks links = {.num_gpus = 2, .links = {{.first = 0, .second = 1}}};
  EXPECT_THAT(DescribeLinks(links),
              ElementsAre("0-1: cannot read each other's memory, so they cannot be ranks of one "
                          "model"));
}

TEST(GpuLinks, WithoutTwoGpusThereIsOneLineThatSaysSo) {
  EXPECT_THAT(DescribeLinks({}), ElementsAre("none: no GPU can be used"));
  EXPECT_THAT(DescribeLinks({.num_gpus = 1}), ElementsAre("none: there is one GPU"));
}

TEST(GpuLinks, EveryPairOfThisMachineIsReadOnce) {
  const GpuLinks links = ReadGpuLinks();
  EXPECT_EQ(links.num_gpus, ops::NumCudaDevices());
  EXPECT_EQ(static_cast<int>(links.links.size()), links.num_gpus * (links.num_gpus - 1) / 2);
}

TEST(GpuLinks, NcclsVersionsAreRead) {
  EXPECT_EQ(ShowNcclVersion(22105), "2.21.5");
  EXPECT_EQ(ShowNcclVersion(2804), "2.8.4");
}

}  // namespace
}  // namespace tandem
