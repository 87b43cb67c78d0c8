#include "serve/kserve/models/repository_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::serve::kserve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Models under their usual names; a test adds others and parameters.
class RepositoryLinksTest : public testing::Test {
 protected:
  FolderModel& Add(const std::string& name, ModelKind kind) {
    FolderModel& model = models_[name];
    model.name = name;
    model.parameters.kind = kind;
    return model;
  }
  void AddChain(const std::string& name, const std::vector<std::string>& steps) {
    Add(name, ModelKind::kEnsemble).steps = steps;
  }
  void AddPair(const std::string& target, const std::string& draft) {
    ModelParameters& parameters = Add("pair", ModelKind::kBls).parameters;
    parameters.target_model = target;
    parameters.draft_model = draft;
  }
  ModelLinks Links(const std::string& name) const { return LinkModels(models_).at(name); }

  FolderModels models_;
};

TEST_F(RepositoryLinksTest, ModelsBelongToTheEngineOfTheirChain) {
  Add("a", ModelKind::kTensorrtLlm);
  Add("b", ModelKind::kTensorrtLlm);
  Add("before", ModelKind::kPreprocessing);
  Add("before_b", ModelKind::kPreprocessing);
  AddChain("chain", {"before", "a"});
  AddChain("chain_b", {"before_b", "b"});
  EXPECT_EQ(Links("a").engine, "a");
  EXPECT_EQ(Links("chain_b").engine, "b");
  EXPECT_EQ(Links("before").engine, "a");
  EXPECT_EQ(Links("before_b").engine, "b");
  EXPECT_THAT(Links("a").parts, IsEmpty());
  EXPECT_THAT(Links("chain_b").parts, ElementsAre("before_b", "b"));
  EXPECT_THAT(Links("before_b").parts, ElementsAre("b"));
}

TEST_F(RepositoryLinksTest, AStageOfNoChainBelongsToAnEngineThatDraftsForNoOther) {
  Add("a_draft", ModelKind::kTensorrtLlm);
  Add("target", ModelKind::kTensorrtLlm);
  Add("after", ModelKind::kPostprocessing);
  EXPECT_EQ(Links("after").engine, "a_draft");
  AddPair("target", "a_draft");
  EXPECT_EQ(Links("after").engine, "target");
  EXPECT_EQ(Links("pair").engine, "target");
  EXPECT_THAT(Links("pair").parts, ElementsAre("target"));
  EXPECT_EQ(Links("target").draft, "a_draft");
  EXPECT_EQ(Links("a_draft").draft, "");
}

TEST_F(RepositoryLinksTest, BuiltInModelsAndStagesAloneHaveNoEngine) {
  Add("simple", ModelKind::kOther);
  Add("before", ModelKind::kPreprocessing);
  for (const char* name : {"simple", "before"}) {
    EXPECT_EQ(Links(name).engine, "") << name;
    EXPECT_THAT(Links(name).parts, IsEmpty()) << name;
  }
  Add("tensorrt_llm", ModelKind::kTensorrtLlm);
  EXPECT_EQ(Links("simple").engine, "");
  EXPECT_EQ(Links("before").engine, "tensorrt_llm");
}

TEST_F(RepositoryLinksTest, TheFirstTokenizerThatIsNamedIsTakenAndOthersAreNoted) {
  Add("tensorrt_llm", ModelKind::kTensorrtLlm);
  ModelParameters& before = Add("preprocessing", ModelKind::kPreprocessing).parameters;
  Add("postprocessing", ModelKind::kPostprocessing).parameters.tokenizer_dir = "after";
  EXPECT_EQ(Links("tensorrt_llm").tokenizer, "after");
  EXPECT_THAT(Links("tensorrt_llm").notes, IsEmpty());
  before.tokenizer_dir = "before";
  EXPECT_EQ(Links("tensorrt_llm").tokenizer, "before");
  EXPECT_THAT(Links("tensorrt_llm").notes,
              ElementsAre(HasSubstr("postprocessing: parameter tokenizer_dir: \"after\" is passed "
                                    "over")));
  models_["tensorrt_llm"].parameters.tokenizer_dir = "after";
  EXPECT_EQ(Links("tensorrt_llm").tokenizer, "after");
  EXPECT_THAT(Links("tensorrt_llm").notes, ElementsAre(HasSubstr("\"before\" is passed over")));
}

TEST_F(RepositoryLinksTest, TextModelsHaveTheDefaultsOfTheirEngineAndOfItsStage) {
  ModelParameters& target = Add("target", ModelKind::kTensorrtLlm).parameters;
  target.exclude_input_in_output = true;
  target.decoupled = true;
  Add("preprocessing", ModelKind::kPreprocessing).parameters.add_special_tokens = false;
  Add("postprocessing", ModelKind::kPostprocessing).parameters.skip_special_tokens = false;
  AddChain("ensemble", {"preprocessing", "target", "postprocessing"});
  for (const char* name : {"target", "ensemble"}) {
    EXPECT_TRUE(Links(name).defaults.exclude_input) << name;
    EXPECT_FALSE(Links(name).defaults.add_special_tokens) << name;
    EXPECT_FALSE(Links(name).defaults.skip_special_tokens) << name;
    EXPECT_TRUE(Links(name).is_decoupled) << name;
  }
  // Clients that speculate themselves find the answers of both engines after the prompts.
  Add("draft", ModelKind::kTensorrtLlm).parameters.exclude_input_in_output = true;
  EXPECT_TRUE(Links("draft").defaults.exclude_input);
  AddPair("target", "draft");
  EXPECT_FALSE(Links("draft").defaults.exclude_input);
  EXPECT_FALSE(Links("target").defaults.exclude_input);
  EXPECT_TRUE(Links("ensemble").defaults.exclude_input);
  EXPECT_TRUE(Links("pair").defaults.exclude_input);
  EXPECT_FALSE(Links("pair").is_decoupled);  // its own configuration's
}

TEST_F(RepositoryLinksTest, NamesOfModelsThatAreNotThereAreKept) {
  AddPair("target", "draft");
  AddChain("chain", {"nothing"});
  EXPECT_EQ(Links("pair").engine, "target");
  EXPECT_THAT(Links("pair").parts, ElementsAre("target"));
  EXPECT_EQ(Links("chain").engine, "");
  EXPECT_THAT(Links("chain").parts, ElementsAre("nothing"));
}

}  // namespace
}  // namespace tandem::serve::kserve
