// `tandem run`: prompts on the command line, answers on stdout, with the flags and the output lines
// of TensorRT-LLM's examples/run.py.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "apps/draft_target_config.h"
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
     .meaning = "Prompts from a file: .txt, one a line; .csv, token ids, one prompt a line",
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
     .meaning = "Cut prompts to their first so many tokens; 0: never cut, refuse what does not fit",
     .group = kPrompts,
     .min = 0,
     .max = 1 << 24},
    {.name = "streaming",
     .type = OptionType::kFlag,
     .meaning = "Print the answer as it comes",
     .group = kPrompts},
    {.name = "output_csv", .meaning = "Write output token ids to a file", .group = kPrompts},
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
    {.name = "kv_cache_enable_block_reuse",
     .type = OptionType::kFlag,
     .meaning = "As --enable_kv_cache_reuse, which is on by default",
     .group = "Batching and memory"},
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
  std::vector<int32_t> tokens;
};

Result<std::vector<int32_t>> ParseTokenLine(std::string_view line) {
  std::vector<int32_t> tokens;
  while (!line.empty()) {
    const size_t comma = std::min(line.find(','), line.size());
    std::string_view word = line.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    int32_t token = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc{}) {
      return InvalidArgument(fmt::format("--input_file: '{}' is not a token id", word));
    }
    tokens.push_back(token);
    line.remove_prefix(std::min(comma + 1, line.size()));
  }
  return tokens;
}

Status AppendFile(const std::string& path, const serve::TextCodec& codec, bool add_special,
                  std::vector<Prompt>& prompts) {
  const bool csv = path.ends_with(".csv");
  if (!csv && !path.ends_with(".txt")) {
    return InvalidArgument("--input_file: '" + path + "' is neither .txt nor .csv");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    Prompt prompt{.shown = line, .tokens = {}};
    TANDEM_ASSIGN_OR_RETURN(prompt.tokens,
                            csv ? ParseTokenLine(line) : codec.Encode(line, add_special));
    prompts.push_back(std::move(prompt));
  }
  return {};
}

Result<std::vector<Prompt>> ReadPrompts(const OptionValues& options,
                                        const serve::TextCodec& codec) {
  const bool add_special = !options.Flag("no_add_special_tokens");
  std::vector<Prompt> prompts;
  for (const std::string& text : options.Texts("input_text")) {
    TANDEM_ASSIGN_OR_RETURN(auto tokens, codec.Encode(text, add_special));
    prompts.push_back({text, std::move(tokens)});
  }
  if (options.IsSet("input_file")) {
    TANDEM_RETURN_IF_ERROR(AppendFile(options.Text("input_file"), codec, add_special, prompts));
  }
  if (prompts.empty())
    return InvalidArgument("there is no prompt: give --input_text or --input_file");
  const auto limit = static_cast<size_t>(options.Int("max_input_length"));
  for (Prompt& prompt : prompts) {
    if (limit > 0 && prompt.tokens.size() > limit) prompt.tokens.resize(limit);
  }
  return prompts;
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

std::string CsvLines(const serve::TextResult& result) {
  std::string lines;
  for (const serve::TextChoice& choice : result.choices) {
    std::string line;
    for (const serve::TokenPiece& piece : choice.pieces) {
      line += fmt::format("{}{}", line.empty() ? "" : ",", piece.token);
    }
    lines += line + "\n";
  }
  return lines;
}

// What --draft_target_model_config asks of the engine.
Result<DraftTargetConfig> ReadDraftTargetConfig(const OptionValues& options, Console& console) {
  if (!options.IsSet("draft_target_model_config")) return DraftTargetConfig{};
  TANDEM_ASSIGN_OR_RETURN(DraftTargetConfig config,
                          ParseDraftTargetConfig(options.Text("draft_target_model_config")));
  console.Say(fmt::format(
      "drafts of up to {} tokens; devices {} (draft) and {} (target) are virtual on a CPU",
      config.draft_len, fmt::join(config.draft_devices, ","),
      fmt::join(config.target_devices, ",")));
  return config;
}

Status Run(const OptionValues& options, Console& console) {
  if (options.Int("num_beams") != 1) {
    return InvalidArgument(
        "--num_beams: there is no beam search; --num_return_sequences draws "
        "several answers");
  }
  NameLegacyOptions(options, LegacyRunRows());
  TANDEM_ASSIGN_OR_RETURN(const DraftTargetConfig config, ReadDraftTargetConfig(options, console));
  TANDEM_ASSIGN_OR_RETURN(const auto session,
                          OpenSession(options, console, [&](EngineOptions& engine) {
                            if (config.draft_len == 0) return;
                            engine.max_draft_len = config.draft_len;
                            engine.ratio_acceptance = config.use_logits;
                          }));
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(options, *session));
  TANDEM_ASSIGN_OR_RETURN(const auto prompts, ReadPrompts(options, *text.codec));
  session->engine->Start();
  const auto client = serve::MakeEngineClient(*session->engine);
  serve::GenerateService service(*client, *text.codec, std::move(text.defaults), session->clock);

  serve::TextRequest request = MakeTemplate(options);
  std::vector<std::unique_ptr<serve::TextStream>> streams;
  for (const Prompt& prompt : prompts) {
    request.tokens = prompt.tokens;
    streams.push_back(service.Start(request));
  }
  const auto num_choices = static_cast<size_t>(request.num_choices);
  const bool streaming = options.Flag("streaming") && num_choices == 1;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::string csv;
  Usage total;  // of all answers
  for (size_t i = 0; i < prompts.size(); ++i) {
    console.Say(fmt::format("Input [Text {}]: \"{}\"", i, prompts[i].shown));
    TANDEM_ASSIGN_OR_RETURN(const serve::TextResult result,
                            Answer(*streams[i], i, streaming, num_choices, console));
    for (size_t c = 0; c < num_choices && !streaming; ++c) {
      console.Say(
          fmt::format("{}: \"{}\"", OutputName(i, c, num_choices > 1), result.choices[c].text));
    }
    json.push_back(ToJson(prompts[i], result));
    csv += CsvLines(result);
    for (const serve::TextChoice& choice : result.choices) {
      total.output_tokens += choice.usage.output_tokens;
      total.drafts_proposed += choice.usage.drafts_proposed;
      total.drafts_accepted += choice.usage.drafts_accepted;
    }
  }
  if (options.IsSet("output_csv")) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(options.Text("output_csv"), csv));
  }
  if (session->engine->has_draft()) {
    console.Say(fmt::format("[{} output tokens; {} of {} drafted tokens held]", total.output_tokens,
                            total.drafts_accepted, total.drafts_proposed));
  }
  console.Result(json.dump());
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
