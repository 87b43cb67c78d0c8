#include "serve/model_registry.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/reason.h"
#include "serve/generate_call.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

// An engine and its service, without a server.
struct Loaded {
  FakeEngine engine;
  ByteCodec codec;
  SteadyClock clock;
  std::shared_ptr<GenerateService> service =
      std::make_shared<GenerateService>(engine, codec, GenerationDefaults(), clock);
};

std::vector<std::string> Names(const std::vector<ModelPtr>& models) {
  std::vector<std::string> names;
  for (const ModelPtr& model : models) names.push_back(model->name);
  return names;
}

TEST(ModelRegistryTest, FindsAnEngineUnderEachOfItsNames) {
  Loaded loaded;
  ModelRegistry models;
  ASSERT_TRUE(models.Add("tandem", loaded.service, {"ensemble", "tensorrt_llm_bls"}).ok());
  for (const ModelPtr& model : models.List()) EXPECT_EQ(model->service, loaded.service);
  EXPECT_EQ(Names(models.List()),
            (std::vector<std::string>{"tandem", "ensemble", "tensorrt_llm_bls"}));
  EXPECT_EQ(Names(models.Engines()), std::vector<std::string>{"tandem"});
  EXPECT_EQ((*models.Default())->name, "tandem");
  const Status unknown = models.Find("gpt-4").status();
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_EQ(unknown.reason(), Reason::kModelNotFound);
  EXPECT_EQ(unknown.field(), "model");
  EXPECT_EQ(unknown.message(), "model: \"gpt-4\" does not exist; this server has \"tandem\"");
}

TEST(ModelRegistryTest, AnAliasMayBeTheOwnName) {
  Loaded loaded;
  ModelRegistry models;
  ASSERT_TRUE(models.Add("ensemble", loaded.service, {"ensemble", "tensorrt_llm_bls"}).ok());
  EXPECT_EQ(Names(models.Engines()), std::vector<std::string>{"ensemble"});
}

TEST(ModelRegistryTest, ATakenNameAddsNothing) {
  Loaded first, second;
  ModelRegistry models;
  ASSERT_TRUE(models.Add("first", first.service, {"ensemble", "tensorrt_llm_bls"}).ok());
  EXPECT_EQ(models.Add("second", second.service, {"ensemble", "tensorrt_llm_bls"}).code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(models.Find("second").ok());
  EXPECT_TRUE(models.Add("second", second.service).ok());
  EXPECT_EQ(Names(models.Engines()), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(models.Stats().size(), 2u);
}

TEST(ModelRegistryTest, ARemovedEngineLosesAllItsNamesAndEndsTheCallsItHas) {
  Loaded first, second;
  ModelRegistry models;
  ASSERT_TRUE(models.Add("first", std::move(first.service), {"ensemble", "tensorrt_llm_bls"}).ok());
  ASSERT_TRUE(models.Add("second", second.service).ok());
  std::vector<TextRequest> prompts(1);
  prompts[0].text = "tandem";
  first.engine.Pause();
  auto call = std::make_unique<GenerateCall>(*models.Find("ensemble"), std::move(prompts),
                                             std::function<void()>());
  const std::weak_ptr<GenerateService> service = (*models.Find("first"))->service;
  EXPECT_TRUE(models.Remove("ensemble").ok());
  EXPECT_EQ(Names(models.List()), std::vector<std::string>{"second"});
  EXPECT_EQ((*models.Default())->name, "second");
  EXPECT_EQ(models.Remove("first").reason(), Reason::kModelNotFound);
  // The call is answered; the service goes with it.
  first.engine.Resume();
  TextEvent event;
  EXPECT_TRUE(Eventually([&] { return call->Next(event) == CallNews::kDone; }));
  EXPECT_EQ(call->answers().at(0).text, "One behind the other.");
  EXPECT_FALSE(service.expired());
  call.reset();
  EXPECT_TRUE(service.expired());
}

TEST(ModelRegistryTest, MayTakeAnyNameForTheDefault) {
  Loaded served;
  ModelRegistry models;
  models.TakeAnyName();
  EXPECT_EQ(models.Find("model").status().reason(), Reason::kModelNotFound) << "there is none";
  ASSERT_TRUE(models.Add("first", served.service, {"ensemble"}).ok());
  EXPECT_EQ((*models.Find("model"))->name, "first");
  EXPECT_EQ((*models.Find("ensemble"))->name, "ensemble");
}

TEST(ModelRegistryTest, WithoutModelsThereIsNoDefault) {
  const ModelRegistry models;
  EXPECT_EQ(models.Default().status().reason(), Reason::kModelNotFound);
}

}  // namespace
}  // namespace tandem::serve
