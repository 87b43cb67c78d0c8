// The program from its words to its output and exit code, in this process. Tests that need a model
// are in tests/e2e/commands_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/cli/help.h"
#include "apps/testing/call.h"
#include "base/file.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/quantized_folder.h"

namespace tandem::apps {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool HasVerb(std::string_view verb) {
  return std::ranges::find(Commands(), verb, &Command::name) != Commands().end();
}

class CommandLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("tandem_command_line_test." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name, std::string_view text) {
    const std::filesystem::path path = folder_ / name;
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    return path.string();
  }
  std::filesystem::path folder_;
};

TEST_F(CommandLineTest, SuggestsTheVerbThatWasMeant) {
  const Ran mistyped = Call({"buidl"});
  EXPECT_EQ(mistyped.code, 2);
  EXPECT_EQ(mistyped.err, "tandem: there is no verb 'buidl'; did you mean build?\n");
  EXPECT_THAT(Call({"fly"}).err, HasSubstr("tandem --help lists them"));
  EXPECT_THAT(Call({"--json", "plan"}).err, HasSubstr("stands where a verb is expected"));
  const Ran nothing = Call({});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("Verbs:"));
  EXPECT_EQ(nothing.out, "");
}

TEST_F(CommandLineTest, SuggestsTheOptionThatWasMeant) {
  const Ran ran = Call({"plan", "--max_batch_sise", "4"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err,
            "tandem plan: --max_batch_sise: there is no such option; did you mean "
            "--max_batch_size?\n");
}

TEST_F(CommandLineTest, ErrorsUnderJsonAreJson) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"plan", "--json", "--portt", "1"},
        std::vector<std::string>{"plan", "--port=1", "--json"}}) {
    const Ran ran = Call(words);
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(ran.out, "");
    const auto json = nlohmann::json::parse(ran.err);
    EXPECT_EQ(json["error"]["code"], "INVALID_ARGUMENT");
    EXPECT_EQ(json["error"]["exit_code"], 2);
    EXPECT_THAT(json["error"]["message"].get<std::string>(), StartsWith("--port"));
  }
  const Ran absent = Call({"inspect", "/absent\xff", "--json"});
  EXPECT_EQ(absent.code, 3);
  EXPECT_EQ(nlohmann::json::parse(absent.err)["error"]["code"], "NOT_FOUND");
}

TEST_F(CommandLineTest, EachKindOfErrorHasItsExitCode) {
  EXPECT_EQ(Call({"inspect"}).code, 2);
  EXPECT_THAT(Call({"inspect"}).err, HasSubstr("--path: is required"));
  EXPECT_THAT(Call({"convert"}).err, HasSubstr("--model_dir: is required"));
  EXPECT_THAT(Call({"build"}).err, HasSubstr("--checkpoint_dir: is required"));
  EXPECT_EQ(Call({"inspect", "/absent"}).code, 3);
  const std::string broken = File("broken.safetensors", "not a header");
  EXPECT_EQ(Call({"inspect", broken}).code, 4);
  EXPECT_EQ(Call({"plan", "--device", "cpu", "--kv_cache_bytes", "1000000G"}).code, 5);
  EXPECT_EQ(Call({"completion", "fish"}).code, 2);
}

TEST_F(CommandLineTest, ControlCharactersReachTheTerminalAsText) {
  const std::string header =
      R"({"a\u001b[2Jb\u009b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  const std::string path = File("names.safetensors", file + header + std::string(4, '\0'));
  const Ran lines = Call({"inspect", path});
  EXPECT_EQ(lines.code, 0) << lines.err;
  EXPECT_THAT(lines.out, HasSubstr("a\\u001b[2Jb\\u009b"));
  EXPECT_EQ(lines.out.find('\x1b'), std::string::npos);
  const auto json = nlohmann::json::parse(Call({"inspect", path, "--json"}).out);
  EXPECT_TRUE(json["names.safetensors"].contains("a\x1b[2Jb\xc2\x9b"));
  EXPECT_EQ(Call({"inspect", "/absent\x1b[2J"}).err.find('\x1b'), std::string::npos);
}

TEST_F(CommandLineTest, InspectSaysHowWeightsAreQuantized) {
  quantized::WriteBoth(folder_, quantized::Packings().front());
  const Ran ran = Call({"inspect", (folder_ / "quantized").string()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("architecture  LlamaForCausalLM, bfloat16, layers in int4 in groups of 32 "
                        "with zero points, an order of inputs\n"));
  EXPECT_THAT(ran.out, HasSubstr("exceptions    mlp.down_proj: not quantized (layers 1)\n"));
}

TEST_F(CommandLineTest, InspectSaysHowLayersAttendAndWhatCanBeMadeOfTheModel) {
  const std::string out = Call({"inspect", FixtureOf("gemma3_text").string()}).out;
  EXPECT_THAT(out, HasSubstr("positions     rotary, base 10000 in 5 layers\n"
                             "positions     rotary, base 1000000 in 1 layer\n"
                             "sees          the last 20 keys in 5 layers\n"
                             "sees          all keys before in 1 layer\n"));
  EXPECT_THAT(out, HasSubstr("quantize      every --qformat\n"));
  EXPECT_THAT(out, HasSubstr("with --export_format hf, a Hugging Face folder\n"));
  EXPECT_THAT(Call({"inspect", FixtureOf("qwen2").string(), "--rotary_base", "777",
                    "--rotary_scaling_type", "linear", "--rotary_scaling_factor", "2"})
                  .out,
              HasSubstr("positions     rotary, base 777, linear scaling by 2\n"));
  EXPECT_THAT(Call({"inspect", FixtureOf("gpt_oss").string()}).out,
              HasSubstr("quantize      is quantized already\n"));
}

TEST_F(CommandLineTest, DamagedWeightsAreNamedAsTheirFileNamesThem) {
  const std::string header = R"({"odd.name":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  const std::string nan("\x00\x00\xc0\x7f", 4);
  const std::string path = File("nan.safetensors", file + header + nan);
  const Ran ran = Call({"inspect", path, "--check"});
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("odd.name (1)"));
}

TEST_F(CommandLineTest, LinksToThemselvesAndPipesAreRefused) {
  const std::filesystem::path loop = folder_ / "loop.safetensors";
  std::filesystem::create_symlink("loop.safetensors", loop);
  EXPECT_EQ(Call({"inspect", loop.string()}).code, 5);
  EXPECT_THAT(Call({"inspect", loop.string()}).err, HasSubstr("symbolic links"));
  const std::filesystem::path folder_loop = folder_ / "loop";
  std::filesystem::create_symlink("loop", folder_loop);
  EXPECT_THAT(Call({"plan", folder_loop.string()}).err, HasSubstr("symbolic links"));
  const std::filesystem::path model = folder_ / "model";
  std::filesystem::create_directory(model);
  ASSERT_EQ(::mkfifo((model / "config.json").c_str(), 0600), 0);
  EXPECT_EQ(Call({"inspect", model.string()}).code, 2);
  EXPECT_THAT(Call({"plan", model.string()}).err, HasSubstr("not a regular file"));
}

TEST_F(CommandLineTest, InputFilesAreReadExactlyOrRefusedByLine) {
  if (!HasVerb("run")) GTEST_SKIP() << "this build has no run";
  const std::string floats = File("floats.csv", "1,2\r\n3,1.5\r\n");
  const Ran ran = Call({"run", "--input_file", floats});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("floats.csv, line 2: '1.5' is not a token id"));
  const std::string hole = File("hole.csv", "1,,2\n");
  EXPECT_THAT(Call({"run", "--input_file", hole}).err, HasSubstr("line 1: '' is not a token id"));
  const std::string blank = File("blank.txt", "\r\n \r\n");
  EXPECT_THAT(Call({"run", "--input_file", blank}).err, HasSubstr("there is no prompt"));
  const std::string npy = File("ids.npy", "x");
  EXPECT_THAT(Call({"run", "--input_file", npy}).err, HasSubstr("neither .txt nor .csv"));
}

TEST_F(CommandLineTest, ADraftConfigurationNeedsADraft) {
  if (!HasVerb("run")) GTEST_SKIP() << "this build has no run";
  const Ran ran = Call(
      {"run", "TARGET", "--draft_target_model_config", "[4,[0],[1],False]", "--input_text", "x"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--draft_target_model_config: no draft model is named"));
  EXPECT_THAT(
      Call({"run", "T", "D", "--draft_target_model_config", "[4]", "--input_text", "x"}).err,
      HasSubstr("--draft_target_model_config: '[4]' is not"));
}

TEST_F(CommandLineTest, KeysAreCheckedBeforeAModelIsLoaded) {
  if (!HasVerb("serve")) GTEST_SKIP() << "this build has no serve";
  const std::string none = File("none.txt", "# nobody\r\n\r\n  \r\n");
  EXPECT_THAT(Call({"serve", "--api_key_file", none}).err, HasSubstr("holds no key"));
  const std::string spaced = File("spaced.txt", "# ours\nkey one\n");
  EXPECT_THAT(Call({"serve", "--api_key_file", spaced}).err, HasSubstr("line 2: a key"));
  EXPECT_THAT(Call({"serve", "--api_key=", "--insecure"}).err,
              HasSubstr("--api_key: the value is empty"));
  EXPECT_THAT(Call({"serve", "--served_model_name="}).err,
              HasSubstr("--served_model_name: the value is empty"));
  EXPECT_THAT(Call({"serve", ""}).err, HasSubstr("MODEL: the value is empty"));
  EXPECT_EQ(Call({"serve", "--host", "0.0.0.0"}).code, 2);
}

TEST_F(CommandLineTest, ACpuRoundsWeightsToEveryType) {
  for (const std::string type : {"fp8", "int8", "int4"}) {
    EXPECT_EQ(Call({"plan", "--weights", type, "--head_weights", type, "--device", "cpu"}).code, 0);
  }
}

TEST_F(CommandLineTest, LengthsThatNoSequenceCanHaveAreRefused) {
  const Ran one = Call({"plan", "--max_seq_len", "1", "--device", "cpu"});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("max_seq_len is 1; a sequence has at least 2 tokens"));
  const Ran long_one = Call({"plan", "--max_seq_len", "1000000", "--device", "cpu"});
  EXPECT_EQ(long_one.code, 2);
  EXPECT_THAT(long_one.err, HasSubstr("max_seq_len is 1000000; the model has"));
  const Ran prompt = Call({"plan", "--max_input_len", "1000000", "--device", "cpu"});
  EXPECT_EQ(prompt.code, 0);
  EXPECT_THAT(prompt.err, HasSubstr("--max_input_len 1000000: a sequence has at most"));
}

TEST(HelpTest, FitsTheTerminal) {
  for (const size_t width : {60, 80, 120, 140}) {
    std::string all = ProgramHelp(width);
    for (const Command& command : Commands()) all += CommandHelp(command, width);
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      const std::string line = all.substr(begin, end - begin);
      // Shell lines are never broken.
      const bool shell = line.starts_with("  tandem ") || line.starts_with("    --");
      EXPECT_LE(line.size(), shell ? 90 : width) << line;
      begin = end + 1;
    }
  }
}

TEST(HelpTest, NamesEveryOptionOnce) {
  for (const Command& command : Commands()) {
    const std::string help = CommandHelp(command, 100);
    EXPECT_THAT(help, HasSubstr("Usage: tandem " + std::string(command.name)));
    std::vector<std::string_view> names;
    for (const OptionSpec& spec : command.options) {
      EXPECT_THAT(help, ContainsRegex("--" + std::string(spec.name) + "[ ,\n]"));
      EXPECT_FALSE(spec.meaning.empty()) << spec.name;
      names.push_back(spec.name);
      for (std::string_view rest = spec.alias; !rest.empty();) {
        names.push_back(rest.substr(0, rest.find('|')));
        rest.remove_prefix(std::min(names.back().size() + 1, rest.size()));
      }
    }
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end()) << command.name;
  }
}

TEST(HelpTest, IsAskedForOfTheProgramAndOfAVerb) {
  EXPECT_THAT(Call({"--help"}).out, HasSubstr("inspect"));
  EXPECT_THAT(Call({"plan", "--max_batch_size", "nonsense", "-h"}).out, HasSubstr("Usage"));
  EXPECT_EQ(Call({"--version"}).code, 0);
}

TEST(CompletionTest, NamesVerbsAndOptions) {
  const Ran bash = Call({"completion"});
  EXPECT_EQ(bash.code, 0);
  EXPECT_THAT(bash.out, HasSubstr("doctor"));
  EXPECT_THAT(bash.out, HasSubstr("--max_batch_size"));
  EXPECT_THAT(Call({"completion", "zsh"}).out, StartsWith("autoload"));
  EXPECT_THAT(Call({"completion", "markdown"}).out, HasSubstr("| exit code | meaning |"));
}

}  // namespace
}  // namespace tandem::apps
