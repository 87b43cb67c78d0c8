#include "serve/openai/completions/response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "serve/json.h"
#include "serve/openai/answers/answer_parser.h"

namespace tandem::serve::openai {
namespace {

void WriteChatToken(const TextCodec& codec, int32_t token, float logprob, JsonWriter& writer) {
  const std::string bytes = codec.TokenBytes(token);
  writer.Key("token").String(bytes).Key("logprob").Float(logprob).Key("bytes").BeginArray();
  for (const char c : bytes) writer.Int(static_cast<uint8_t>(c));
  writer.EndArray();
}

void WriteChatLogprobs(std::span<const TokenPiece> pieces, const TextCodec& codec, bool in_list,
                       JsonWriter& writer) {
  writer.Key("logprobs");
  if (in_list) writer.BeginArray();
  writer.BeginObject().Key("content").BeginArray();
  for (const TokenPiece& piece : pieces) {
    if (piece.token >= 0) WriteTokenLogprob(codec, piece, writer);
  }
  writer.EndArray().Key("refusal").Null().EndObject();
  if (in_list) writer.EndArray();
}

// Tokens that are spelled alike (a byte's own token, say) share a key, which the likeliest keeps.
void WriteTopDictionary(const TokenPiece& piece, const TextCodec& codec, JsonWriter& writer) {
  if (std::isnan(piece.logprob)) {  // a prompt's first token
    writer.Null();
    return;
  }
  std::vector<std::string> keys;
  const auto write = [&](int32_t token, float logprob) {
    std::string key = TokenName(codec, token);
    if (std::ranges::count(keys, key) > 0) return;
    writer.Key(key).Float(logprob);
    keys.push_back(std::move(key));
  };
  writer.BeginObject();
  for (const TopLogprob& top : piece.top) write(top.token, top.logprob);
  write(piece.token, piece.logprob);
  writer.EndObject();
}

// Pieces one after the other, from the `offset`-th character of the choice's text on.
struct PieceRun {
  std::span<const TokenPiece> pieces;
  size_t offset = 0;
};

void WriteCompletionLogprobs(std::initializer_list<PieceRun> runs, const TextCodec& codec,
                             JsonWriter& writer) {
  std::vector<const TokenPiece*> tokens;
  std::vector<size_t> offsets;
  for (const PieceRun& run : runs) {
    size_t offset = run.offset;
    for (const TokenPiece& piece : run.pieces) {
      if (piece.token >= 0) {
        tokens.push_back(&piece);
        offsets.push_back(offset);
      }
      offset += CountCharacters(piece.text);
    }
  }
  writer.Key("logprobs").BeginObject().Key("tokens").BeginArray();
  for (const TokenPiece* piece : tokens) writer.String(TokenName(codec, piece->token));
  writer.EndArray().Key("token_logprobs").BeginArray();
  for (const TokenPiece* piece : tokens) writer.Float(piece->logprob);
  writer.EndArray().Key("top_logprobs").BeginArray();
  for (const TokenPiece* piece : tokens) WriteTopDictionary(*piece, codec, writer);
  writer.EndArray().Key("text_offset").BeginArray();
  for (const size_t start : offsets) writer.Int(static_cast<int64_t>(start));
  writer.EndArray().EndObject();
}

// vLLM's form: for each token of the prompt but the first an object by token ids. A rank is known
// of the likeliest tokens only.
void WritePromptLogprobs(const PromptText& prompt, int64_t most, const TextCodec& codec,
                         JsonWriter& writer) {
  const auto write = [&](int32_t token, float logprob, size_t rank) {
    writer.Key(std::to_string(token)).BeginObject().Key("logprob").Float(logprob).Key("rank");
    rank > 0 ? writer.Int(static_cast<int64_t>(rank)) : writer.Null();
    writer.Key("decoded_token").String(codec.TokenBytes(token)).EndObject();
  };
  writer.Key("prompt_logprobs").BeginArray();
  for (const TokenPiece& piece : prompt.pieces) {
    if (std::isnan(piece.logprob)) {
      writer.Null();
      continue;
    }
    const size_t count = std::min(piece.top.size(), static_cast<size_t>(most));
    const auto top = std::span(piece.top).first(count);
    writer.BeginObject();
    for (size_t i = 0; i < count; ++i) write(top[i].token, top[i].logprob, i + 1);
    if (std::ranges::count(top, piece.token, &TopLogprob::token) == 0) {
      write(piece.token, piece.logprob, 0);
    }
    writer.EndObject();
  }
  writer.EndArray();
}

std::string_view FinishWord(TextFinish finish, bool ends_with_calls, EndWords words) {
  if (finish != TextFinish::kStop) return TextFinishName(finish);
  if (ends_with_calls) return "tool_calls";
  return words == EndWords::kDjl ? "eos_token" : TextFinishName(finish);
}

void WriteFinish(TextFinish finish, bool ends_with_calls, EndWords words, JsonWriter& writer) {
  writer.Key("finish_reason");
  if (finish == TextFinish::kNone) {
    writer.Null();
  } else {
    writer.String(FinishWord(finish, ends_with_calls, words));
  }
}

void WriteUsage(const CallUsage& usage, JsonWriter& writer) {
  writer.Key("usage").BeginObject();
  writer.Key("prompt_tokens").Int(usage.prompt_tokens);
  writer.Key("completion_tokens").Int(usage.completion_tokens);
  writer.Key("total_tokens").Int(usage.prompt_tokens + usage.completion_tokens);
  writer.Key("prompt_tokens_details").BeginObject();
  writer.Key("cached_tokens").Int(usage.cached_tokens).EndObject();
  writer.Key("completion_tokens_details").BeginObject();
  writer.Key("accepted_prediction_tokens").Int(usage.accepted_tokens);
  writer.Key("rejected_prediction_tokens").Int(usage.rejected_tokens).EndObject();
  writer.EndObject();
}

// The seed as the client may have given it: a negative one is kept as a large unsigned number.
void WriteSeed(const CallUsage& usage, JsonWriter& writer) {
  writer.Key("seed").Int(static_cast<int64_t>(usage.seed));
}

void WriteHeader(const ResponseHeader& header, std::string_view object, JsonWriter& writer) {
  writer.Key("id").String(header.id).Key("object").String(object);
  writer.Key("created").Int(header.created).Key("model").String(header.model);
}

void WriteModel(const Model& model, JsonWriter& writer) {
  writer.BeginObject().Key("id").String(model.name).Key("object").String("model");
  writer.Key("created").Int(model.created).Key("owned_by").String("tandem");
  writer.Key("max_model_len").Int(model.service->engine_limits().max_seq_len).EndObject();
}

// A piece of a streamed answer, as members of a delta.
void WritePart(const AnswerPart& part, JsonWriter& writer) {
  if (part.kind == PartKind::kContent) {
    writer.Key("content").String(part.text);
    return;
  }
  if (part.kind == PartKind::kReasoning) {
    writer.Key("reasoning_content").String(part.text);
    return;
  }
  const bool begins = part.kind == PartKind::kCall;
  writer.Key("tool_calls").BeginArray().BeginObject().Key("index").Int(part.call);
  if (begins) {
    writer.Key("id").String(part.id).Key("type").String("function");
  }
  writer.Key("function").BeginObject();
  if (begins) writer.Key("name").String(part.text);
  writer.Key("arguments").String(begins ? "" : part.text);
  writer.EndObject().EndObject().EndArray();
}

// The message of a whole answer. Returns how many calls it has.
int32_t WriteMessage(const TextChoice& answer, const AnswerPlan& plan, JsonWriter& writer) {
  struct FunctionCall {
    std::string name, arguments;
  };
  std::string content;
  std::string reasoning;
  std::vector<FunctionCall> calls;
  AnswerParser parser = plan.NewParser(answer.reasoning);
  std::vector<AnswerPart> parts = parser.Push(answer.text);
  for (AnswerPart& part : parser.Flush()) parts.push_back(std::move(part));
  for (AnswerPart& part : parts) {
    switch (part.kind) {
      case PartKind::kContent:
        content += part.text;
        break;
      case PartKind::kReasoning:
        reasoning += part.text;
        break;
      case PartKind::kCall:
        calls.push_back({std::move(part.text), {}});
        break;
      case PartKind::kArguments:
        calls.back().arguments += part.text;
        break;
    }
  }
  writer.Key("message").BeginObject().Key("role").String("assistant").Key("content");
  content.empty() && !calls.empty() ? writer.Null() : writer.String(content);
  if (!reasoning.empty()) writer.Key("reasoning_content").String(reasoning);
  if (!calls.empty()) {
    writer.Key("tool_calls").BeginArray();
    for (const FunctionCall& call : calls) {
      writer.BeginObject().Key("id").String(plan.NewCallId());
      writer.Key("type").String("function").Key("function").BeginObject();
      writer.Key("name").String(call.name).Key("arguments").String(call.arguments);
      writer.EndObject().EndObject();
    }
    writer.EndArray();
  }
  writer.EndObject();
  return static_cast<int32_t>(calls.size());
}

void WriteChunkChoice(const ResponseHeader& header, const Choice& choice,
                      const ChunkOptions& options, const TextCodec& codec, JsonWriter& writer) {
  writer.BeginObject().Key("index").Int(choice.index);
  if (header.endpoint == Endpoint::kChat) {
    writer.Key("delta").BeginObject();
    if (options.is_first) writer.Key("role").String("assistant");
    // The last chunk of an answer holds only the finish reason.
    if (choice.finish == TextFinish::kNone && choice.part) {
      WritePart(*choice.part, writer);
    }
    writer.EndObject();
  } else {
    writer.Key("text").String(choice.text);
  }
  const PieceRun run{choice.pieces, choice.text_offset};
  if (!options.logprobs || choice.pieces.empty()) {
    writer.Key("logprobs").Null();
  } else if (header.endpoint == Endpoint::kChat) {
    WriteChatLogprobs(run.pieces, codec, header.words == EndWords::kDjl, writer);
  } else {
    WriteCompletionLogprobs({run}, codec, writer);
  }
  WriteFinish(choice.finish, choice.ends_with_calls, header.words, writer);
  writer.EndObject();
}

void WriteCompletionText(const TextChoice& answer, bool logprobs, const Echo& echo,
                         const TextCodec& codec, JsonWriter& writer) {
  PieceRun prompt;
  PieceRun answered;
  std::string text;
  if (echo.prompt) {
    text = answer.prompt->text;
    prompt.pieces = answer.prompt->pieces;
    answered.offset = CountCharacters(text);
  }
  if (echo.answer) {
    text += answer.text;
    answered.pieces = answer.pieces;
  }
  writer.Key("text").String(text);
  if (logprobs) WriteCompletionLogprobs({prompt, answered}, codec, writer);
}

}  // namespace

bool EndsWithCalls(const CallableTools& tools, int32_t num_calls) {
  return num_calls > 0 && !tools.is_named;
}

void WriteTokenLogprob(const TextCodec& codec, const TokenPiece& piece, JsonWriter& writer) {
  writer.BeginObject();
  WriteChatToken(codec, piece.token, piece.logprob, writer);
  writer.Key("top_logprobs").BeginArray();
  for (const TopLogprob& top : piece.top) {
    writer.BeginObject();
    WriteChatToken(codec, top.token, top.logprob, writer);
    writer.EndObject();
  }
  writer.EndArray().EndObject();
}

std::string TokenName(const TextCodec& codec, int32_t token) {
  std::string bytes = codec.TokenBytes(token);
  if (IsUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes)
    fmt::format_to(std::back_inserter(name), "\\x{:02x}", static_cast<uint8_t>(c));
  return name;
}

double MeanLogprob(std::span<const TokenPiece> pieces) {
  double sum = 0;
  int64_t count = 0;
  for (const TokenPiece& piece : pieces) {
    if (piece.token < 0) continue;
    sum += piece.logprob;
    ++count;
  }
  return count == 0 ? -std::numeric_limits<double>::infinity() : sum / static_cast<double>(count);
}

std::vector<const TextChoice*> BestChoices(const std::vector<TextChoice>& answers, size_t generated,
                                           size_t wanted) {
  std::vector<const TextChoice*> best;
  for (const TextChoice& answer : answers) best.push_back(&answer);
  if (wanted == generated) return best;
  std::vector<const TextChoice*> kept;
  for (size_t first = 0; first < best.size(); first += generated) {
    const auto of_prompt = std::span(best).subspan(first, generated);
    std::ranges::stable_sort(of_prompt, std::ranges::greater(),
                             [](const TextChoice* answer) { return MeanLogprob(answer->pieces); });
    kept.insert(kept.end(), of_prompt.begin(), of_prompt.begin() + static_cast<ptrdiff_t>(wanted));
  }
  return kept;
}

std::string FormatResponse(const ResponseHeader& header,
                           const std::vector<const TextChoice*>& answers, const CallUsage& usage,
                           bool logprobs, const Echo& echo, const TextCodec& codec,
                           const AnswerPlan& plan) {
  const bool is_chat = header.endpoint == Endpoint::kChat;
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject();
  WriteHeader(header, is_chat ? "chat.completion" : "text_completion", writer);
  writer.Key("choices").BeginArray();
  for (size_t i = 0; i < answers.size(); ++i) {
    const TextChoice& answer = *answers[i];
    writer.BeginObject().Key("index").Int(static_cast<int64_t>(i));
    int32_t num_calls = 0;
    if (is_chat) {
      num_calls = WriteMessage(answer, plan, writer);
      if (logprobs) WriteChatLogprobs(answer.pieces, codec, /*in_list=*/false, writer);
    } else {
      WriteCompletionText(answer, logprobs, echo, codec, writer);
    }
    if (!logprobs) writer.Key("logprobs").Null();
    if (!is_chat && echo.num_prompt_logprobs >= 0) {
      WritePromptLogprobs(*answer.prompt, echo.num_prompt_logprobs, codec, writer);
    }
    WriteFinish(answer.finish, EndsWithCalls(plan.tools, num_calls), header.words, writer);
    writer.EndObject();
  }
  writer.EndArray();
  if (is_chat && echo.num_prompt_logprobs >= 0) {
    WritePromptLogprobs(*answers.front()->prompt, echo.num_prompt_logprobs, codec, writer);
  }
  if (echo.expanded) {
    writer.Key("expanded_prompt").String(answers.front()->prompt->text);
  }
  WriteUsage(usage, writer);
  WriteSeed(usage, writer);
  writer.EndObject();
  return out;
}

std::string FormatChunk(const ResponseHeader& header, const Choice* choice,
                        const ChunkOptions& options, const TextCodec& codec) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject();
  WriteHeader(header,
              header.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion",
              writer);
  writer.Key("choices").BeginArray();
  if (choice != nullptr) WriteChunkChoice(header, *choice, options, codec, writer);
  writer.EndArray();
  if (options.usage != nullptr) {
    WriteUsage(*options.usage, writer);
    if (choice == nullptr) WriteSeed(*options.usage, writer);
  } else if (options.null_usage) {
    writer.Key("usage").Null();
  }
  writer.EndObject();
  return out;
}

std::string FormatModels(const std::vector<ModelPtr>& models) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("object").String("list").Key("data").BeginArray();
  for (const ModelPtr& model : models) WriteModel(*model, writer);
  writer.EndArray().EndObject();
  return out;
}

std::string FormatModel(const Model& model) {
  std::string out;
  JsonWriter writer(out);
  WriteModel(model, writer);
  return out;
}

std::string FormatVersion(std::string_view version) {
  std::string out;
  JsonWriter(out).BeginObject().Key("version").String(version).EndObject();
  return out;
}

}  // namespace tandem::serve::openai
