// `tandem run`: prompts on the command line, answers on stdout, with the flags and the output lines
// of TensorRT-LLM's examples/run.py.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>

#include "apps/cli/legacy_options.h"
#include "apps/cli/text_verbs.h"
#include "apps/models/session.h"
#include "apps/models/tokenizers.h"
#include "apps/verbs/answers.h"
#include "apps/verbs/draft_target_config.h"
#include "apps/verbs/prompts.h"
#include "base/log.h"
#include "ops/backend.h"
#include "runtime/option_rows.h"
#include "runtime/request/sampling_parameters.h"
#include "serve/generate_service.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kPrompts = "Prompts and output";
constexpr std::string_view kSampling = "Sampling";

struct RunOptions {
  std::vector<std::string> input_text;
  std::string input_file;
  int64_t max_input_length = 0;  // tokens
  bool streaming = false;
  std::string output_csv;
  bool no_add_special_tokens = false;
  int64_t num_beams = 1;
  std::string draft_target_model_config;
};

const BoundOptions<RunOptions>& RunRows() {
  static const BoundOptions<RunOptions> rows({
      BindOption<RunOptions, &RunOptions::input_text>(
          {.name = "input_text", .meaning = "One prompt or several", .group = kPrompts}),
      BindOption<RunOptions, &RunOptions::input_file>(
          {.name = "input_file",
           .meaning = "Prompts from a file, one per line: text in a .txt, token ids in a .csv",
           .group = kPrompts}),
      BindOption<RunOptions, &RunOptions::max_input_length>(
          {.name = "max_input_length",
           .meaning = "Keep only the first this many tokens of a prompt; 0: never cut, refuse what "
                      "does not fit",
           .group = kPrompts,
           .min = 0,
           .max = 1 << 24}),
      BindOption<RunOptions, &RunOptions::streaming>(
          {.name = "streaming",
           .meaning = "Print the answer while it is generated",
           .group = kPrompts}),
      BindOption<RunOptions, &RunOptions::output_csv>(
          {.name = "output_csv",
           .meaning =
               "Write output token ids to a file, one line per answer. Its name is FILE.partial "
               "until the last answer is written; a run that ends early leaves that file",
           .group = kPrompts}),
      BindOption<RunOptions, &RunOptions::no_add_special_tokens>(
          {.name = "no_add_special_tokens",
           .meaning = "Do not put the beginning-of-text token before a prompt",
           .group = kPrompts}),
      BindOption<RunOptions, &RunOptions::num_beams>(
          {.name = "num_beams", .meaning = "Only 1: there is no beam search", .group = kSampling}),
      BindOption<RunOptions, &RunOptions::draft_target_model_config>(
          {.name = "draft_target_model_config",
           .meaning = "[draft_len,[draft devices],[target devices],use_logits], as in "
                      "[4,[0],[1],False]; draft_len is the longest draft; the devices are numbers "
                      "of GPUs; those that this machine does not have are ignored",
           .group = "Speculation"}),
  });
  return rows;
}

// The option of a sampling parameter.
BoundOption<serve::TextRequest> OptionOf(const SamplingParameter& parameter) {
  return {{.name = parameter.name,
           .type = parameter.is_integer() ? OptionType::kInt : OptionType::kFloat,
           .meaning = parameter.meaning,
           .group = kSampling,
           .min = parameter.low,
           .max = parameter.high},
          [&parameter](const OptionValues& values, const OptionSpec& spec,
                       serve::TextRequest& request) {
            if (!values.IsSet(spec)) return;
            std::visit(
                [&](const auto& members) {
                  auto& field = request.sampling.*members.given;
                  using Value = std::remove_cvref_t<decltype(*field)>;
                  field = ValueOf<Value>(values, spec);
                },
                parameter.members);
          }};
}

// What all prompts share.
const BoundOptions<serve::TextRequest>& RequestRows() {
  using serve::TextRequest;
  static const BoundOptions<TextRequest> rows([] {
    std::vector<BoundOption<TextRequest>> list = {
        BindOption<TextRequest, &TextRequest::max_tokens>({.name = "max_output_len",
                                                           .default_value = "128",
                                                           .meaning = "Output tokens at most",
                                                           .group = kPrompts,
                                                           .min = 1,
                                                           .max = 1 << 20}),
        BindOption<TextRequest, &TextRequest::num_choices>({.name = "num_return_sequences",
                                                            .meaning = "Answers for each prompt",
                                                            .group = kSampling,
                                                            .min = 1,
                                                            .max = 128}),
        BindOption<TextRequest, &TextRequest::seed>(
            {.name = "random_seed",
             .meaning = "Seed of the draws; a new one for each run when left out",
             .group = kSampling,
             .min = 0}),
        BindOption<TextRequest, &TextRequest::end_id>(
            {.name = "end_id",
             .meaning = "Token that ends an answer; the model's when left out, -1: none",
             .group = kSampling}),
        BindOption<TextRequest, &TextRequest::stop>({.name = "stop_words",
                                                     .meaning = "End an answer before any of these",
                                                     .group = kSampling}),
        BindOption<TextRequest, &TextRequest::bad_words>(
            {.name = "bad_words",
             .meaning = "Never generate any of these, however they are spelled in tokens",
             .group = kSampling}),
    };
    for (const SamplingParameter& parameter : kSamplingParameters) {
      list.push_back(OptionOf(parameter));
    }
    return list;
  }());
  return rows;
}

serve::TextRequest RequestFrom(const OptionValues& values) {
  serve::TextRequest request = RequestRows().Read(values);
  request.names = {.prompt = "--input_text or --input_file",
                   .max_tokens = "--max_output_len",
                   .min_tokens = "--min_tokens",
                   .num_choices = "--num_return_sequences",
                   .stop = "--stop_words"};
  // run.py decodes greedily by default.
  request.defaults = serve::SamplingDefaults::kGreedy;
  return request;
}

Status Tokenize(const RunOptions& options, const serve::TextCodec& codec,
                std::vector<Prompt>& prompts) {
  const bool add_special = !options.no_add_special_tokens;
  const auto limit = static_cast<size_t>(options.max_input_length);
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
    if (streaming) {
      for (const serve::TokenPiece& piece : event.pieces) console.SayPart(piece.text);
    }
    result.choices[static_cast<size_t>(event.choice)].Add(std::move(event));
  }
  if (streaming) console.SayPart("\"\n");
  return result;
}

// The effect of --draft_target_model_config on the engine.
Result<DraftTargetConfig> ReadDraftTargetConfig(const OptionValues& values, Console& console) {
  const OptionSpec& row = RunRows().RowOf<&RunOptions::draft_target_model_config>();
  if (!values.IsSet(row)) return DraftTargetConfig{};
  auto config = ParseDraftTargetConfig(values.Text(row));
  if (!config.ok()) return config.status().Annotate(fmt::format("--{}", row.name));
  if (!ModelOptionRows().Read(values).NamesDraft()) {
    return InvalidArgument(fmt::format(
        "--{}: no draft model is named: give --draft_engine_dir too, or leave this out", row.name));
  }
  if (EngineOptionsFrom(values).draft_mode == DraftMode::kOff) {
    LogWarning("--{}: has no effect with --no_draft", row.name);
  }
  console.Say(fmt::format("drafts of up to {} tokens", config->draft_len));
  return config;
}

// The options that put both models on the GPUs of --draft_target_model_config, where this machine
// has them and the command line has not put them elsewhere.
Status PlaceModels(const DraftTargetConfig& config, const Console& console, OptionValues& values) {
  if (config.draft_len == 0) return {};
  const std::string_view where = RunRows().RowOf<&RunOptions::draft_target_model_config>().name;
  const OptionSpec& device = BackendOptionRows().RowOf<&BackendOptions::device>();
  const OptionSpec& draft_device = RankOptionRows().RowOf<&RankOptions::draft_device>();
  const OptionSpec& ranks = RankOptionRows().RowOf<&RankOptions::target>();
  int last = 0;
  for (const auto* gpus : {&config.draft_devices, &config.target_devices}) {
    last = std::max(last, *std::ranges::max_element(*gpus));
  }
  const bool is_apart = !std::ranges::is_permutation(config.draft_devices, config.target_devices);
  const bool is_placed = values.IsSet(device) || values.IsSet(draft_device);
  std::string why;
  if (is_placed) {
    why = "--device or --draft_device says where the models run";
  } else if (const int gpus = ops::NumCudaDevices(); last >= gpus) {
    why = gpus == 0 ? "there is no GPU" : fmt::format("there is no GPU {}", last);
  }
  if (!why.empty()) {
    console.Say(fmt::format("devices {} (draft) and {} (target) have no effect: {}",
                            fmt::join(config.draft_devices, ","),
                            fmt::join(config.target_devices, ","), why));
    return {};
  }
  const auto set = [&](const OptionSpec& option, const std::vector<int>& gpus) {
    return values.Set(option.name, {fmt::format("cuda:{}", fmt::join(gpus, ",cuda:"))}, where);
  };
  TANDEM_RETURN_IF_ERROR(set(device, config.target_devices));
  if (config.target_devices.size() == 1 && !values.IsSet(ranks)) {
    TANDEM_RETURN_IF_ERROR(values.Set(ranks.name, {"1"}, where));
  }
  return is_apart ? set(draft_device, config.draft_devices) : Status();
}

// Answers all prompts in order, with at most as many open as the engine's queue takes.
class Answering {
 public:
  Answering(serve::GenerateService& service, serve::TextRequest request, bool streaming,
            const Console& console)
      : service_(service), console_(console), request_(std::move(request)) {
    const auto places = static_cast<size_t>(service.engine_limits().max_queue_size);
    num_choices_ = static_cast<size_t>(request_.num_choices);
    most_open_ = std::max<size_t>(places / num_choices_, 1);
    streaming_ = streaming && num_choices_ == 1;
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

Status Run(const OptionValues& given, Console& console) {
  OptionValues values = given;
  const RunOptions options = RunRows().Read(values);
  if (options.num_beams != 1) {
    return InvalidArgument(
        "--num_beams: there is no beam search; --num_return_sequences draws "
        "several answers");
  }
  NameLegacyOptions(values, LegacyRunRows());
  // Refuse everything possible before a model is loaded.
  TANDEM_ASSIGN_OR_RETURN(const DraftTargetConfig config, ReadDraftTargetConfig(values, console));
  TANDEM_RETURN_IF_ERROR(PlaceModels(config, console, values));
  TANDEM_ASSIGN_OR_RETURN(auto prompts, ReadPrompts(options.input_text, options.input_file));
  TANDEM_ASSIGN_OR_RETURN(
      const auto session, OpenSession(values, console, [&](EngineOptions& engine) {
        // While one batch runs, the next one waits, so that every step is full.
        engine.max_queue_size = std::max(engine.max_queue_size, 2 * engine.max_batch_size);
        if (config.draft_len == 0) return;
        engine.max_draft_len = config.draft_len;
        engine.ratio_acceptance = config.use_logits;
      }));
  if (session->follows()) return FollowSession(*session);
  if (const int32_t most = session->engine->options().max_draft_len; config.draft_len > most) {
    LogWarning("--{}: drafts have at most {} tokens, for which the engine was built",
               RunRows().RowOf<&RunOptions::draft_target_model_config>().name, most);
  }
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(*session));
  TANDEM_RETURN_IF_ERROR(Tokenize(options, *text.codec, prompts));
  TANDEM_ASSIGN_OR_RETURN(auto writer, AnswerWriter::Open(options.output_csv, console));
  session->engine->Start();
  const auto client = serve::MakeEngineClient(*session->engine);
  serve::GenerateService service(*client, *text.codec, std::move(text.defaults), session->clock);
  Answering answering(service, RequestFrom(values), options.streaming, console);
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
          .options = Join({SessionOptionRows(Join({RunRows().specs(), RequestRows().specs()})),
                           LegacyRunRows()}),
          .run = Run};
}

}  // namespace tandem::apps
