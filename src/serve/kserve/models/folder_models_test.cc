#include "serve/kserve/models/folder_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/source_dir.h"

namespace tandem::serve::kserve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(FolderModels, OfAllUnfilledVariablesThoseThatUsersMeantToFillAreWarnedOf) {
  const auto templates = SourceDir() / "compat/all_models/inflight_batcher_llm";
  const auto notes = [&](const std::string& name) {
    const Result<FolderModel> model = ReadModel(templates, name);
    EXPECT_TRUE(model.ok()) << model.status().message();
    EXPECT_THAT(model->defaults, HasSubstr("${triton_max_batch_size}: 64")) << name;
    return model->notes;
  };
  EXPECT_THAT(notes("tensorrt_llm"),
              ElementsAre(AllOf(StartsWith("tensorrt_llm/config.pbtxt, line "),
                                HasSubstr("${engine_dir} is not filled in; gpt_model_path is then "
                                          "the folder 1 of the model"))));
  EXPECT_THAT(notes("preprocessing"),
              ElementsAre(HasSubstr("${tokenizer_dir} is not filled in; tokenizer_dir is then the "
                                    "engine's own tokenizer")));
  for (const char* name : {"ensemble", "postprocessing", "tensorrt_llm_bls"}) {
    EXPECT_THAT(notes(name), IsEmpty()) << name;
  }
}

}  // namespace
}  // namespace tandem::serve::kserve
