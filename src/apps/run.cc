// `tandem run`: prompts on the command line, answers on stdout, with the flags and the output lines
// of TensorRT-LLM's examples/run.py.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <nlohmann/json.hpp>

#include "apps/draft_target_config.h"
#include "apps/json_text.h"
#include "apps/legacy_options.h"
#include "apps/session.h"
#include "apps/text_verbs.h"
#include "apps/tokenizers.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/generate_service.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kPrompts = "Prompts and output";
constexpr std::string_view kSampling = "Sampling";

constexpr OptionSpec kOptions[] = {
    {.name = "input_text",
     .type = OptionType::kTexts,
     .meaning = "One prompt or several",
     .group = kPrompts},
    {.name = "input_file",
     .meaning = "Prompts from a file, one per line: text in a .txt, token ids in a .csv",
     .group = kPrompts},
    {.name = "max_output_len",
     .type = OptionType::kInt,
     .default_value = "128",
     .meaning = "Output tokens at most",
     .group = kPrompts,
     .min = 1,
     .max = 1 << 20},
    {.name = "max_input_length",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Cut prompts to at most this many tokens, their first; 0: never cut, refuse what "
                "does not fit",
     .group = kPrompts,
     .min = 0,
     .max = 1 << 24},
    {.name = "streaming",
     .type = OptionType::kFlag,
     .meaning = "Print the answer as it comes",
     .group = kPrompts},
    {.name = "output_csv",
     .meaning = "Write output token ids to a file, a line for each answer; until the last one is "
                "there it is called FILE.partial, and a run that ends early leaves that",
     .group = kPrompts},
    {.name = "no_add_special_tokens",
     .type = OptionType::kFlag,
     .meaning = "Do not put the beginning-of-text token before a prompt",
     .group = kPrompts},
    {.name = "num_beams",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Only 1: there is no beam search",
     .group = kSampling},
    {.name = "num_return_sequences",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Answers for each prompt",
     .group = kSampling,
     .min = 1,
     .max = 128},
    {.name = "temperature", .type = OptionType::kFloat, .meaning = "[1.0]", .group = kSampling},
    {.name = "top_k",
     .type = OptionType::kInt,
     .meaning = "Draw among the k likeliest tokens [greedy]",
     .group = kSampling},
    {.name = "top_p",
     .type = OptionType::kFloat,
     .meaning = "Draw among the likeliest tokens of this mass [greedy]",
     .group = kSampling},
    {.name = "min_p", .type = OptionType::kFloat, .meaning = "[0]", .group = kSampling},
    {.name = "repetition_penalty",
     .type = OptionType::kFloat,
     .meaning = "[1.0]",
     .group = kSampling},
    {.name = "presence_penalty", .type = OptionType::kFloat, .meaning = "[0]", .group = kSampling},
    {.name = "frequency_penalty", .type = OptionType::kFloat, .meaning = "[0]", .group = kSampling},
    {.name = "no_repeat_ngram_size",
     .type = OptionType::kInt,
     .meaning = "[off]",
     .group = kSampling},
    {.name = "random_seed",
     .type = OptionType::kInt,
     .meaning = "[random]",
     .group = kSampling,
     .min = 0},
    {.name = "end_id", .type = OptionType::kInt, .meaning = "[the model's]", .group = kSampling},
    {.name = "stop_words",
     .type = OptionType::kTexts,
     .meaning = "End an answer before any of these",
     .group = kSampling},
    {.name = "bad_words",
     .type = OptionType::kTexts,
     .meaning = "Never generate any of these, however they are spelled in tokens",
     .group = kSampling},
    {.name = "draft_target_model_config",
     .meaning = "[draft_len,[draft devices],[target devices],use_logits], as in [4,[0],[1],False]; "
                "draft_len is the longest draft, devices are virtual on a CPU",
     .group = "Speculation"},
};

template <typename T>
void TakeFloat(const OptionValues& options, std::string_view name, std::optional<T>& field) {
  if (options.IsSet(name)) field = options.Float(name);
}

void TakeInt(const OptionValues& options, std::string_view name, std::optional<int64_t>& field) {
  if (options.IsSet(name)) field = options.Int(name);
}

// The request that all prompts share.
serve::TextRequest MakeTemplate(const OptionValues& options) {
  serve::TextRequest request;
  // run.py draws greedily unless told otherwise.
  request.defaults = serve::SamplingDefaults::kGreedy;
  request.max_tokens = options.Int("max_output_len");
  request.num_choices = options.Int("num_return_sequences");
  serve::SamplingFields& sampling = request.sampling;
  TakeFloat(options, "temperature", sampling.temperature);
  TakeInt(options, "top_k", sampling.top_k);
  TakeFloat(options, "top_p", sampling.top_p);
  TakeFloat(options, "min_p", sampling.min_p);
  TakeFloat(options, "repetition_penalty", sampling.repetition_penalty);
  TakeFloat(options, "presence_penalty", sampling.presence_penalty);
  TakeFloat(options, "frequency_penalty", sampling.frequency_penalty);
  TakeInt(options, "no_repeat_ngram_size", sampling.no_repeat_ngram_size);
  if (options.IsSet("random_seed"))
    request.seed = static_cast<uint64_t>(options.Int("random_seed"));
  TakeInt(options, "end_id", request.end_id);
  request.stop = options.Texts("stop_words");
  request.bad_words = options.Texts("bad_words");
  return request;
}

// A prompt, as text for people and as what the service gets.
struct Prompt {
  std::string shown;
  std::vector<int32_t> tokens;  // empty: yet to be made from the text
};

std::string_view WithoutSpaces(std::string_view word) {
  while (word.starts_with(' ') || word.starts_with('\t')) word.remove_prefix(1);
  while (word.ends_with(' ') || word.ends_with('\t')) word.remove_suffix(1);
  return word;
}

Result<std::vector<int32_t>> ParseTokenLine(std::string_view line) {
  std::vector<int32_t> tokens;
  for (bool more = true; more;) {
    const size_t comma = std::min(line.find(','), line.size());
    const std::string_view word = WithoutSpaces(line.substr(0, comma));
    int32_t token = 0;
    const char* const word_end = word.data() + word.size();
    const auto [end, error] = std::from_chars(word.data(), word_end, token);
    if (error != std::errc{} || end != word_end || token < 0) {
      return InvalidArgument(fmt::format("'{}' is not a token id", word));
    }
    tokens.push_back(token);
    more = comma < line.size();
    line.remove_prefix(std::min(comma + 1, line.size()));
  }
  return tokens;
}

Status AppendFile(const std::string& path, std::vector<Prompt>& prompts) {
  const bool csv = path.ends_with(".csv");
  if (!csv && !path.ends_with(".txt")) {
    return InvalidArgument("--input_file: '" + path + "' is neither .txt nor .csv");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (WithoutSpaces(lines[i]).empty()) continue;
    Prompt prompt{.shown = lines[i], .tokens = {}};
    if (csv) {
      auto tokens = ParseTokenLine(lines[i]);
      if (!tokens.ok()) {
        return tokens.status().Annotate(fmt::format("--input_file: {}, line {}", path, i + 1));
      }
      prompt.tokens = *std::move(tokens);
    }
    prompts.push_back(std::move(prompt));
  }
  return {};
}

Result<std::vector<Prompt>> ReadPrompts(const OptionValues& options) {
  std::vector<Prompt> prompts;
  for (const std::string& text : options.Texts("input_text")) prompts.push_back({text, {}});
  if (options.IsSet("input_file")) {
    TANDEM_RETURN_IF_ERROR(AppendFile(options.Text("input_file"), prompts));
  }
  if (prompts.empty())
    return InvalidArgument("there is no prompt: give --input_text or --input_file");
  return prompts;
}

Status Tokenize(const OptionValues& options, const serve::TextCodec& codec,
                std::vector<Prompt>& prompts) {
  const bool add_special = !options.Flag("no_add_special_tokens");
  const auto limit = static_cast<size_t>(options.Int("max_input_length"));
  for (Prompt& prompt : prompts) {
    if (prompt.tokens.empty()) {
      TANDEM_ASSIGN_OR_RETURN(prompt.tokens, codec.Encode(prompt.shown, add_special));
    }
    if (limit > 0 && prompt.tokens.size() > limit) prompt.tokens.resize(limit);
  }
  return {};
}

// "Output [Text 0 Beam 0]", and with several answers "Output [Text 0 Seq 1 Beam 0]".
std::string OutputName(size_t prompt, size_t choice, bool several) {
  return several ? fmt::format("Output [Text {} Seq {} Beam 0]", prompt, choice)
                 : fmt::format("Output [Text {} Beam 0]", prompt);
}

// The answers to one prompt, printed on the way when they are streamed.
Result<serve::TextResult> Answer(serve::TextStream& stream, size_t prompt, bool streaming,
                                 size_t num_choices, const Console& console) {
  serve::TextResult result;
  result.choices.resize(num_choices);
  if (streaming) console.SayPart(OutputName(prompt, 0, false) + ": \"");
  for (serve::TextEvent event; stream.Next(event);) {
    if (!event.error.ok()) return event.error;
    serve::TextChoice& choice = result.choices[static_cast<size_t>(event.choice)];
    for (serve::TokenPiece& piece : event.pieces) {
      if (streaming) console.SayPart(piece.text);
      choice.text += piece.text;
      choice.pieces.push_back(std::move(piece));
    }
    if (event.finish != serve::TextFinish::kNone) choice.finish = event.finish;
    choice.usage = event.usage;
  }
  if (streaming) console.SayPart("\"\n");
  return result;
}

nlohmann::ordered_json ToJson(const Prompt& prompt, const serve::TextResult& result) {
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const serve::TextChoice& choice : result.choices) {
    outputs.push_back({{"text", choice.text},
                       {"finish_reason", serve::TextFinishName(choice.finish)},
                       {"output_tokens", choice.usage.output_tokens},
                       {"drafts_proposed", choice.usage.drafts_proposed},
                       {"drafts_accepted", choice.usage.drafts_accepted},
                       {"seed", choice.usage.seed}});
  }
  return {{"input", prompt.shown}, {"outputs", outputs}};
}

// A piece without a token is text that was held back to the end.
std::string CsvLines(const serve::TextResult& result) {
  std::string lines;
  for (const serve::TextChoice& choice : result.choices) {
    std::string line;
    for (const serve::TokenPiece& piece : choice.pieces) {
      if (piece.token < 0) continue;
      line += fmt::format("{}{}", line.empty() ? "" : ",", piece.token);
    }
    lines += line + "\n";
  }
  return lines;
}

// What --draft_target_model_config asks of the engine.
Result<DraftTargetConfig> ReadDraftTargetConfig(const OptionValues& options, Console& console) {
  constexpr std::string_view kName = "draft_target_model_config";
  if (!options.IsSet(kName)) return DraftTargetConfig{};
  auto config = ParseDraftTargetConfig(options.Text(kName));
  if (!config.ok()) return config.status().Annotate(fmt::format("--{}", kName));
  if (!NamesDraft(options)) {
    return InvalidArgument(fmt::format(
        "--{}: no draft model is named: give --draft_engine_dir too, or leave this out", kName));
  }
  if (options.Flag("no_draft")) LogWarning("--{}: has no effect with --no_draft", kName);
  console.Say(fmt::format(
      "drafts of up to {} tokens; devices {} (draft) and {} (target) are virtual on a CPU",
      config->draft_len, fmt::join(config->draft_devices, ","),
      fmt::join(config->target_devices, ",")));
  return config;
}

// Where answers go, each when it is finished and in the order of the prompts.
class AnswerWriter {
 public:
  static Result<AnswerWriter> Open(const OptionValues& options, const Console& console) {
    AnswerWriter writer(console);
    if (options.IsSet("output_csv")) {
      writer.csv_path_ = options.Text("output_csv");
      TANDEM_ASSIGN_OR_RETURN(
          writer.csv_,
          AtomicFileWriter::Create(writer.csv_path_, AtomicFileWriter::Unfinished::kKeep));
    }
    return writer;
  }

  Status Write(const Prompt& prompt, const serve::TextResult& result) {
    console_.Result((written_ == 0 ? "[" : ",") + JsonText(ToJson(prompt, result)));
    ++written_;
    if (csv_) TANDEM_RETURN_IF_ERROR(csv_->Append(CsvLines(result)));
    return console_.status();
  }

  // After the last answer, or before `failed`, which ended the run early.
  Status Finish(const Status& failed) {
    console_.Result(written_ == 0 ? "[]" : "]");
    if (!csv_) return failed;
    if (failed.ok()) return csv_->Commit();
    return {failed.code(), fmt::format("{} (the {} answers before it are in {}.partial)",
                                       failed.message(), written_, csv_path_)};
  }

 private:
  explicit AnswerWriter(const Console& console) : console_(console) {}

  const Console& console_;
  std::string csv_path_;
  std::unique_ptr<AtomicFileWriter> csv_;
  size_t written_ = 0;
};

// Answers all prompts in order, with no more of them open than the engine's queue takes.
class Answering {
 public:
  Answering(serve::GenerateService& service, const Session& session, const OptionValues& options,
            const Console& console)
      : service_(service), console_(console), request_(MakeTemplate(options)) {
    const auto places = static_cast<size_t>(session.engine_options.max_queue_size);
    num_choices_ = static_cast<size_t>(request_.num_choices);
    most_open_ = std::max<size_t>(places / num_choices_, 1);
    streaming_ = options.Flag("streaming") && num_choices_ == 1;
  }

  Status Run(const std::vector<Prompt>& prompts, AnswerWriter& writer) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      Feed(prompts);
      console_.Say(fmt::format("Input [Text {}]: \"{}\"", i, prompts[i].shown));
      const auto result = Answer(*open_.front(), i, streaming_, num_choices_, console_);
      if (!result.ok()) {
        return prompts.size() == 1 ? result.status()
                                   : result.status().Annotate(fmt::format("prompt {}", i));
      }
      open_.pop_front();
      for (size_t c = 0; c < num_choices_ && !streaming_; ++c) {
        console_.Say(
            fmt::format("{}: \"{}\"", OutputName(i, c, num_choices_ > 1), result->choices[c].text));
      }
      for (const serve::TextChoice& choice : result->choices) Count(choice.usage);
      TANDEM_RETURN_IF_ERROR(writer.Write(prompts[i], *result));
    }
    return {};
  }

  const Usage& total() const { return total_; }

 private:
  void Feed(const std::vector<Prompt>& prompts) {
    while (started_ < prompts.size() && open_.size() < most_open_) {
      request_.tokens = prompts[started_++].tokens;
      open_.push_back(service_.Start(request_));
    }
  }

  void Count(const Usage& usage) {
    total_.output_tokens += usage.output_tokens;
    total_.drafts_proposed += usage.drafts_proposed;
    total_.drafts_accepted += usage.drafts_accepted;
  }

  serve::GenerateService& service_;
  const Console& console_;
  serve::TextRequest request_;  // of the prompt started last
  size_t num_choices_ = 1;
  size_t most_open_ = 1;
  bool streaming_ = false;
  std::deque<std::unique_ptr<serve::TextStream>> open_;  // in the order of the prompts
  size_t started_ = 0;
  Usage total_;  // of all answers
};

Status Run(const OptionValues& options, Console& console) {
  if (options.Int("num_beams") != 1) {
    return InvalidArgument(
        "--num_beams: there is no beam search; --num_return_sequences draws "
        "several answers");
  }
  NameLegacyOptions(options, LegacyRunRows());
  // What can be refused is refused before a model is loaded.
  TANDEM_ASSIGN_OR_RETURN(const DraftTargetConfig config, ReadDraftTargetConfig(options, console));
  TANDEM_ASSIGN_OR_RETURN(auto prompts, ReadPrompts(options));
  TANDEM_ASSIGN_OR_RETURN(auto writer, AnswerWriter::Open(options, console));
  TANDEM_ASSIGN_OR_RETURN(const auto session,
                          OpenSession(options, console, [&](EngineOptions& engine) {
                            if (config.draft_len == 0) return;
                            engine.max_draft_len = config.draft_len;
                            engine.ratio_acceptance = config.use_logits;
                          }));
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(options, *session));
  TANDEM_RETURN_IF_ERROR(Tokenize(options, *text.codec, prompts));
  session->engine->Start();
  const auto client = serve::MakeEngineClient(*session->engine);
  serve::GenerateService service(*client, *text.codec, std::move(text.defaults), session->clock);
  Answering answering(service, *session, options, console);
  TANDEM_RETURN_IF_ERROR(writer.Finish(answering.Run(prompts, writer)));
  if (session->engine->has_draft()) {
    const Usage& total = answering.total();
    console.Say(fmt::format("[{} output tokens; {} of {} drafted tokens held]", total.output_tokens,
                            total.drafts_accepted, total.drafts_proposed));
  }
  return {};
}

}  // namespace

Command RunCommand() {
  return {.name = "run",
          .summary = "Answer prompts from the command line, without a server",
          .examples =
              "  tandem run --input_text 'What does \"ocean\" mean?'\n"
              "  tandem run --engine_dir TARGET --draft_engine_dir DRAFT \\\n"
              "    --draft_target_model_config '[4,[0],[1],False]' --max_output_len 256 \\\n"
              "    --input_text 'How does Draft-Sampling work?'\n",
          .positionals = SessionPositionals(),
          .options = Join({SessionOptionRows(), kOptions, LegacyRunRows()}),
          .run = Run};
}

}  // namespace tandem::apps
