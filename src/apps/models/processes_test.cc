#include "apps/models/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/testing/temporary_folder.h"

namespace tandem::apps {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Result<RankWorld> Find(const ProcessOptions& options, const Variables& variables) {
  return WorldOf(options, [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

ProcessOptions Options(int32_t count, int32_t rank, const std::string& leader_address = "") {
  ProcessOptions options;
  options.count = count;
  options.rank = rank;
  options.leader_address = leader_address;
  return options;
}

const Variables kMpi = {{"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_NAMESPACE", "1457127425"}};
const Variables kLws = {{"LWS_GROUP_SIZE", "2"},
                        {"LWS_WORKER_INDEX", "1"},
                        {"LWS_LEADER_ADDRESS", "pair-0.pair.default"}};

TEST(ProcessesTest, AProcessIsAloneUnlessItIsToldOtherwise) {
  EXPECT_EQ(Find({}, {}).value().size, 1);
  EXPECT_EQ(Find(Options(1, -1), kMpi).value().size, 1);
  EXPECT_EQ(Find({}, {{"OMPI_COMM_WORLD_SIZE", "4"}}).value().size, 1);
  EXPECT_EQ(Find({}, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}).value().size,
            1);
}

TEST(ProcessesTest, OpenMpiNamesTheProcessesOfOneMachine) {
  const RankWorld world = Find({}, kMpi).value();
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.address, "unix:tandem-1457127425");
}

TEST(ProcessesTest, OpenMpiOnSeveralMachinesNeedsAnAddressAndASecret) {
  Variables variables = kMpi;
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(Find({}, variables).status().message(), HasSubstr("--leader_address: mpirun"));
  ProcessOptions options;
  options.leader_address = "node1";
  EXPECT_THAT(Find(options, variables).status().message(), HasSubstr("--rank_secret_file"));
  const TemporaryFolder folder;
  options.secret_file = folder.path() / "secret";
  EXPECT_THAT(Find(options, variables).status().message(), HasSubstr("--rank_secret_file"));
  std::ofstream(options.secret_file) << "between us\n";
  const RankWorld world = Find(options, variables).value();
  EXPECT_EQ(world.address, "node1:18200");
  EXPECT_EQ(world.secret, "between us");
  std::ofstream(options.secret_file) << "\n";
  EXPECT_THAT(Find(options, variables).status().message(), HasSubstr("the file is empty"));
}

TEST(ProcessesTest, ALeaderWorkerSetNamesItsPods) {
  const TemporaryFolder folder;
  ProcessOptions options;
  options.secret_file = folder.path() / "secret";
  std::ofstream(options.secret_file) << "between us";
  const RankWorld world = Find(options, kLws).value();
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.address, "pair-0.pair.default:18200");
}

TEST(ProcessesTest, APodThatDoesNotKnowItsPlaceSaysSo) {
  for (const char* missing : {"LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"}) {
    Variables variables = kLws;
    variables.erase(missing);
    EXPECT_THAT(Find({}, variables).status().message(), HasSubstr(missing));
    EXPECT_EQ(Find(Options(1, -1), variables).value().size, 1);
  }
  Variables variables = kLws;
  variables["LWS_GROUP_SIZE"] = "two";
  EXPECT_THAT(Find({}, variables).status().message(), HasSubstr("LWS_GROUP_SIZE"));
}

TEST(ProcessesTest, TheCommandLineCounts) {
  const TemporaryFolder folder;
  ProcessOptions options = Options(3, 2, "127.0.0.1:7000");
  // Any user of the machine could come there.
  EXPECT_THAT(Find(options, kMpi).status().message(), HasSubstr("need a secret"));
  options.secret_file = folder.path() / "secret";
  std::ofstream(options.secret_file) << "between us";
  const RankWorld world = Find(options, kMpi).value();
  EXPECT_EQ(world.size, 3);
  EXPECT_EQ(world.rank, 2);
  EXPECT_EQ(world.address, "127.0.0.1:7000");
  options.leader_address = "[::1]";
  EXPECT_EQ(Find(options, {}).value().address, "[::1]:18200");
}

TEST(ProcessesTest, ASampleTellsModelsApart) {
  const TemporaryFolder one, other;
  const auto write = [](const TemporaryFolder& folder, char last) {
    std::ofstream(folder.path() / "config.json") << "{}";
    std::ofstream(folder.path() / "model.safetensors") << std::string(100'000, 'w') << last;
  };
  write(one, 'a');
  write(other, 'a');
  EXPECT_EQ(SampleModel(one.path()).value(), SampleModel(other.path()).value());
  write(other, 'b');
  EXPECT_NE(SampleModel(one.path()).value(), SampleModel(other.path()).value());
  EXPECT_FALSE(SampleModel(one.path() / "none").ok());
}

TEST(ProcessesTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(Find(Options(0, 1), {}).status().message(), HasSubstr("--num_processes"));
  EXPECT_THAT(Find(Options(0, -1, "127.0.0.1"), {}).status().message(),
              HasSubstr("--num_processes"));
  EXPECT_THAT(Find(Options(2, -1), {}).status().message(), HasSubstr("--process_rank"));
  EXPECT_THAT(Find(Options(2, 0), {}).status().message(), HasSubstr("--leader_address"));
  EXPECT_THAT(Find(Options(2, 2), {}).status().message(), HasSubstr("the last one is number 1"));
  // Another number than the launcher's: its ranks say nothing.
  EXPECT_THAT(Find(Options(2, -1), kMpi).status().message(), HasSubstr("--process_rank"));
}

// The ranks of the second of `sharing` processes, each with `num_gpus` of its own.
Result<RankOptions> Taken(int32_t target, int32_t stages, int32_t num_gpus, int32_t sharing,
                          int32_t num_processes) {
  ProcessGroup group;
  group.num_with_ranks = sharing;
  group.index = 1;
  RankOptions ranks;
  ranks.target = target;
  ranks.stages = stages;
  TANDEM_RETURN_IF_ERROR(TakeRanksOfGpus(num_gpus, num_processes, group, ranks));
  return ranks;
}

TEST(ProcessesTest, ProcessesWithGpusOfTheirOwnShareTheRanks) {
  const RankOptions tensor = Taken(16, 1, 8, 2, 2).value();
  EXPECT_EQ(tensor.first, 8);
  EXPECT_EQ(tensor.here, 8);
  const RankOptions stages = Taken(4, 4, 8, 2, 2).value();
  EXPECT_EQ(stages.first, 8);
  EXPECT_EQ(stages.here, 8);
  const RankOptions wide = Taken(8, 2, 4, 4, 4).value();
  EXPECT_EQ(wide.first, 4);
  EXPECT_EQ(wide.here, 4);
}

TEST(ProcessesTest, RanksThatNobodyAskedForAreOneForEachGpuOrProcess) {
  EXPECT_EQ(Taken(0, 1, 8, 2, 2).value().target, 16);
  EXPECT_EQ(Taken(0, 2, 8, 2, 2).value().target, 8);
  EXPECT_EQ(Taken(0, 1, 8, 2, 4).value().target, 4);  // mpirun -n 4 over two machines
}

TEST(ProcessesTest, RanksThatCannotBeDividedAmongProcessesAreRefused) {
  EXPECT_THAT(Taken(3, 1, 8, 2, 2).status().message(), HasSubstr("--tensor_parallel_size 3"));
  EXPECT_THAT(Taken(2, 3, 8, 2, 2).status().message(), HasSubstr("--pipeline_parallel_size 3"));
}

}  // namespace
}  // namespace tandem::apps
