#include "serve/kserve/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "serve/kserve/config_file.h"
#include "serve/kserve/models/builtin_models.h"

namespace tandem::serve::kserve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// Notes what it is asked for, once it may go on.
class NotingLoader final : public ModelLoader {
 public:
  Status Load(std::string_view name, std::string_view config) override {
    may_go_on_.wait();
    calls.push_back("load " + std::string(name) + " " + std::string(config));
    return NotFound("no such folder");
  }
  Status Unload(std::string_view name, bool dependents) override {
    calls.push_back("unload " + std::string(name) + (dependents ? " and dependents" : ""));
    return {};
  }

  std::promise<void> go_on;
  std::vector<std::string> calls;

 private:
  const std::shared_future<void> may_go_on_ = go_on.get_future().share();
};

class ControlTest : public testing::Test {
 protected:
  ControlTest() { models_.SetLoader(&loader_); }

  using Control = decltype(LoadModel);
  Status Run(Control& control, const Parameters& parameters) {
    std::promise<Status> outcome;
    control(models_, "m", parameters,
            [&outcome](const Status& status) { outcome.set_value(status); });
    return outcome.get_future().get();
  }

  void Add(const std::string& name) {
    inference::ModelConfig config;
    std::vector<Unfilled> unfilled;
    const std::string text = "name: \"" + name +
                             "\" backend: \"identity\" "
                             "input { name: \"IN\" data_type: TYPE_INT32 dims: -1 } "
                             "output { name: \"OUT\" data_type: TYPE_INT32 dims: -1 }";
    ASSERT_TRUE(ReadConfigText(text, "config.pbtxt", config, unfilled).ok());
    models_.Add(MakeBuiltinModel(config).value());
  }

  SteadyClock clock_;
  NotingLoader loader_;
  Repository models_{clock_};
};

TEST_F(ControlTest, LoadingTakesAConfigAndReportsHowItEnded) {
  loader_.go_on.set_value();
  EXPECT_EQ(Run(LoadModel, {{"config", std::string("{}")}}).code(), Code::kNotFound);
  EXPECT_THAT(loader_.calls, ElementsAre("load m {}"));
}

TEST_F(ControlTest, UnloadingTakesWhetherDependentsGoToo) {
  EXPECT_TRUE(Run(UnloadModel, {}).ok());
  EXPECT_TRUE(Run(UnloadModel, {{"unload_dependents", true}}).ok());
  EXPECT_THAT(loader_.calls, ElementsAre("unload m", "unload m and dependents"));
}

TEST_F(ControlTest, OtherParametersAndOtherTypesAreRefusedByName) {
  const std::vector<std::pair<Control*, Parameters>> cases = {
      {&LoadModel, {{"unload_dependents", true}}},
      {&LoadModel, {{"config", true}}},
      {&LoadModel, {{"file:1/model", std::string("x")}}},
      {&UnloadModel, {{"config", std::string("{}")}}},
      {&UnloadModel, {{"unload_dependents", std::string("true")}}},
  };
  for (const auto& [control, parameters] : cases) {
    const std::string& name = parameters.begin()->first;
    const Status refusal = Run(*control, parameters);
    EXPECT_EQ(refusal.code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(refusal.field(), name);
    EXPECT_THAT(refusal.message(), HasSubstr("'" + name + "'"));
  }
  EXPECT_TRUE(loader_.calls.empty());
}

TEST_F(ControlTest, WhenTooManyModelsWaitFurtherOnesAreRefusedAtOnce) {
  Status refusal;
  // The first is held in the loader and the others wait for it, so only a refusal ends on this
  // thread.
  while (refusal.ok()) {
    LoadModel(models_, "m", {},
              [&refusal, here = std::this_thread::get_id()](const Status& status) {
                if (std::this_thread::get_id() == here) refusal = status;
              });
  }
  EXPECT_EQ(refusal.code(), Code::kResourceExhausted);
  loader_.go_on.set_value();
}

TEST_F(ControlTest, StatisticsAreThoseOfOneModelOrOfAll) {
  Add("a");
  Add("b");
  const auto names = [&](std::optional<std::string_view> name) {
    const std::vector<NamedStatistics> rows = StatisticsOf(models_, name, "").value();
    std::vector<std::string> found;
    for (const NamedStatistics& row : rows) found.push_back(row.model);
    return found;
  };
  EXPECT_THAT(names(std::nullopt), ElementsAre("a", "b"));
  EXPECT_THAT(names("b"), ElementsAre("b"));
  EXPECT_EQ(StatisticsOf(models_, "c", "").status().code(), Code::kNotFound);
  EXPECT_EQ(StatisticsOf(models_, "a", "2").status().code(), Code::kNotFound);
  EXPECT_EQ(StatisticsOf(models_, "", "").status().code(), Code::kNotFound);
}

TEST_F(ControlTest, TracesStayOff) {
  Add("a");
  const auto change = [&](std::optional<std::string_view> name, const TraceSettings& changes) {
    return ChangeTraceSettings(models_, name, "", changes);
  };
  const auto off = ElementsAre(Pair("trace_level", ElementsAre("OFF")));
  EXPECT_THAT(change(std::nullopt, {}).value(), off);
  EXPECT_THAT(change("a", {{"trace_level", {"OFF"}}, {"trace_rate", {}}}).value(), off);
  for (const TraceSettings& other : std::vector<TraceSettings>{{{"trace_level", {"TIMESTAMPS"}}},
                                                               {{"trace_level", {"OFF", "OFF"}}},
                                                               {{"trace_rate", {"OFF"}}}}) {
    const Status refusal = change("a", other).status();
    EXPECT_EQ(refusal.code(), Code::kUnimplemented);
    EXPECT_EQ(refusal.field(), other.begin()->first);
  }
  EXPECT_EQ(change("b", {}).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::serve::kserve
