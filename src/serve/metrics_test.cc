#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace tandem::serve {
namespace {

// The value of a metric, labels included in its name; fails the test when there is none.
double Value(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) return std::atof(line.c_str() + name.size() + 1);
  }
  ADD_FAILURE() << "no " << name << " in\n" << text;
  return 0;
}

// The types declared in the text, by name.
std::map<std::string, std::string> Types(const std::string& text) {
  std::map<std::string, std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const size_t space = line.rfind(' ');
    types[line.substr(7, space - 7)] = line.substr(space + 1);
  }
  return types;
}

TEST(MetricsTest, EveryCounterAndNothingElseEndsInTotal) {
  Metrics metrics({.version = "1", .commit = "c", .free_memory = [] { return int64_t{5}; }});
  metrics.CountResponse("openai", 200);
  metrics.CountFailed(Code::kInternal);
  metrics.CountFinished(TextFinish::kStop, Usage());
  const std::vector<EngineStats> engines(1);
  const auto types = Types(metrics.Text(engines));
  EXPECT_GT(types.size(), 30u);
  for (const auto& [name, type] : types) {
    EXPECT_EQ(name.ends_with("_total"), type == "counter") << name << " is a " << type;
  }
}

TEST(MetricsTest, ReplicasAreToldApartWhereThereAreSeveral) {
  std::vector<EngineStats> engines(2);
  EXPECT_EQ(Metrics().Text(engines).find("tandem_replica"), std::string::npos);
  engines[0].replicas = {{.running = 1, .waiting = 5}, {.running = 2}};
  const std::string text = Metrics().Text(engines);
  EXPECT_EQ(Value(text, "tandem_replica_requests_running{replica=\"0\"}"), 1);
  EXPECT_EQ(Value(text, "tandem_replica_requests_running{replica=\"1\"}"), 2);
  EXPECT_EQ(Value(text, "tandem_replica_requests_waiting{replica=\"0\"}"), 5);
}

TEST(MetricsTest, TheFiguresOfAllEnginesAreSummed) {
  std::vector<EngineStats> engines(2);
  engines[0].running = 3;
  engines[1].running = 4;
  engines[0].kv.free_blocks = 10;
  engines[1].kv.free_blocks = 20;
  engines[0].output_tokens = 100;
  engines[1].seconds_since_progress = 2.5;
  const std::string text = Metrics().Text(engines);
  EXPECT_EQ(Value(text, "tandem_requests_running"), 7);
  EXPECT_EQ(Value(text, "tandem_kv_blocks{state=\"free\"}"), 30);
  EXPECT_EQ(Value(text, "tandem_output_tokens_total"), 100);
  EXPECT_EQ(Value(text, "tandem_engine_heartbeat_age_seconds"), 2.5);
  EXPECT_EQ(Value(Metrics().Text({}), "tandem_requests_running"), 0);
}

TEST(MetricsTest, EnginesThatHaveFailedAreCounted) {
  std::vector<EngineStats> engines(2);
  EXPECT_EQ(Value(Metrics().Text(engines), "tandem_engines_failed"), 0);
  engines[1].failure = Unavailable("the device is lost");
  EXPECT_EQ(Value(Metrics().Text(engines), "tandem_engines_failed"), 1);
}

TEST(MetricsTest, TellsHowManyRanksAModelHasOnceThereIsOne) {
  int32_t ranks = 0;
  const Metrics metrics({.free_memory = {}, .ranks = [&ranks] { return ranks; }});
  EXPECT_EQ(metrics.Text({}).find("tandem_ranks"), std::string::npos);
  ranks = 2;
  EXPECT_EQ(Value(metrics.Text({}), "tandem_ranks"), 2);
}

TEST(MetricsTest, TellsWhatRunsAndWhatItTakes) {
  const Metrics metrics({.version = "1.2.3", .commit = "4f2c1ab", .free_memory = {}});
  const std::string text = metrics.Text({});
  EXPECT_EQ(Value(text, "tandem_build_info{commit=\"4f2c1ab\",version=\"1.2.3\"}"), 1);
  EXPECT_GT(Value(text, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(Value(text, "process_virtual_memory_bytes"),
            Value(text, "process_resident_memory_bytes"));
  EXPECT_GE(Value(text, "process_cpu_seconds_total"), 0);
  EXPECT_GE(Value(text, "process_threads"), 1);
  EXPECT_GE(Value(text, "process_open_fds"), 3);
  EXPECT_GT(Value(text, "process_max_fds"), Value(text, "process_open_fds"));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  const double start = Value(text, "process_start_time_seconds");
  EXPECT_LE(start, seconds);
  EXPECT_GT(start, seconds - 3600);
  // It does not change.
  EXPECT_EQ(Value(metrics.Text({}), "process_start_time_seconds"), start);
  EXPECT_EQ(text.find("tandem_memory_free_bytes"), std::string::npos);
}

}  // namespace
}  // namespace tandem::serve
