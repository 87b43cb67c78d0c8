// `tandem run`: prompts on the command line, answers on stdout, with the flags and the output lines
// of TensorRT-LLM's examples/run.py.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>

#include "apps/answers.h"
#include "apps/draft_target_config.h"
#include "apps/legacy_options.h"
#include "apps/prompts.h"
#include "apps/session.h"
#include "apps/text_verbs.h"
#include "apps/tokenizers.h"
#include "base/log.h"
#include "runtime/request/sampling_ranges.h"
#include "serve/generate_service.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kPrompts = "Prompts and output";
constexpr std::string_view kSampling = "Sampling";

constexpr OptionSpec Sampling(std::string_view name, OptionType type, const SamplingRange& range,
                              std::string_view meaning) {
  return {.name = name,
          .type = type,
          .meaning = meaning,
          .group = kSampling,
          .min = range.low,
          .max = range.high};
}

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
    Sampling("temperature", OptionType::kFloat, SamplingRangeOf("temperature"), "[1.0]"),
    Sampling("top_k", OptionType::kInt, SamplingRangeOf("top_k"),
             "Draw among the k likeliest tokens [greedy]"),
    Sampling("top_p", OptionType::kFloat, SamplingRangeOf("top_p"),
             "Draw among the likeliest tokens of this mass [greedy]"),
    Sampling("min_p", OptionType::kFloat, SamplingRangeOf("min_p"), "[0]"),
    Sampling("repetition_penalty", OptionType::kFloat, SamplingRangeOf("repetition_penalty"),
             "[1.0]"),
    Sampling("presence_penalty", OptionType::kFloat, SamplingRangeOf("presence_penalty"), "[0]"),
    Sampling("frequency_penalty", OptionType::kFloat, SamplingRangeOf("frequency_penalty"), "[0]"),
    Sampling("no_repeat_ngram_size", OptionType::kInt, SamplingRangeOf("no_repeat_ngram_size"),
             "[off]"),
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

// The answers to one prompt, printed as they come when they are streamed.
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

// Answers all prompts in order, with at most as many open as the engine's queue takes.
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
  TANDEM_ASSIGN_OR_RETURN(
      const auto session, OpenSession(options, console, [&](EngineOptions& engine) {
        // While one batch runs, the next one waits: every step is full.
        engine.max_queue_size = std::max(engine.max_queue_size, 2 * engine.max_batch_size);
        if (config.draft_len == 0) return;
        engine.max_draft_len = config.draft_len;
        engine.ratio_acceptance = config.use_logits;
      }));
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(options, *session));
  TANDEM_RETURN_IF_ERROR(Tokenize(options, *text.codec, prompts));
  TANDEM_ASSIGN_OR_RETURN(auto writer, AnswerWriter::Open(options.Text("output_csv"), console));
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
