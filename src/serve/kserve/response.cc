#include "serve/kserve/response.h"

#include <utility>

#include "serve/json.h"
#include "serve/kserve/request.h"

namespace tandem::serve::kserve {
namespace {

// One element is written bare, several as an array.
template <typename T, typename Write>
void WriteElements(const std::vector<T>& elements, Write&& write, JsonWriter& writer) {
  if (elements.size() == 1) return write(elements[0]);
  writer.BeginArray();
  for (const T& element : elements) write(element);
  writer.EndArray();
}

void WriteTensors(std::span<const TensorInfo> tensors, ModelRole role, JsonWriter& writer) {
  writer.BeginArray();
  for (const TensorInfo& info : tensors) {
    if (info.bls_only && role != ModelRole::kBls) continue;
    writer.BeginObject().Key("name").String(info.name);
    writer.Key("datatype").String(DataTypeName(info.type)).Key("shape").BeginArray();
    writer.Int(-1).Int(info.is_list ? -1 : 1).EndArray().EndObject();
  }
  writer.EndArray();
}

}  // namespace

ResponseBuilder::ResponseBuilder(bool return_log_probs, std::string prompt)
    : return_log_probs_(return_log_probs), prompt_(std::move(prompt)) {}

float ResponseBuilder::LogProb(const TokenPiece& piece) const {
  return return_log_probs_ && piece.token >= 0 ? piece.logprob : 0.0f;
}

void ResponseBuilder::AddEvent(const GenerateCall& call, TextEvent event,
                               std::vector<Response>& responses) {
  shown_.resize(call.answers().size());
  Shown& shown = shown_[static_cast<size_t>(event.choice)];
  if (event.pieces.empty() && !shown.any) event.pieces.emplace_back().token = -1;
  for (TokenPiece& piece : event.pieces) {
    shown.cum_log_prob += LogProb(piece);
    shown.any = true;
    Response& response = responses.emplace_back();
    response.cum_log_probs = {shown.cum_log_prob};
    if (piece.token >= 0) response.output_log_probs = {LogProb(piece)};
    response.texts.push_back(std::move(piece.text));
    if (shown_.size() > 1) response.sequence_index = event.choice;
  }
}

Response ResponseBuilder::Whole(const GenerateCall& call) const {
  Response response;
  std::vector<float>& log_probs = response.output_log_probs;
  for (const TextChoice& answer : call.answers()) {
    float sum = 0.0f;
    for (const TokenPiece& piece : answer.pieces) {
      if (piece.token >= 0) log_probs.push_back(LogProb(piece));
      sum += LogProb(piece);
    }
    // Pieces are kept only if the client asked for them.
    if (!return_log_probs_)
      log_probs.resize(log_probs.size() + static_cast<size_t>(answer.num_tokens));
    response.cum_log_probs.push_back(sum);
    response.texts.push_back(prompt_ + answer.text);
  }
  return response;
}

std::string FormatResponse(const Model& model, const std::string& id, const Response& response) {
  const bool is_ensemble = model.role == ModelRole::kEnsemble;
  std::string out;
  JsonWriter writer(out);
  const auto write_float = [&writer](float value) { writer.Float(value); };
  writer.BeginObject().Key("cum_log_probs");
  WriteElements(response.cum_log_probs, write_float, writer);
  if (!id.empty()) writer.Key("id").String(id);
  writer.Key("model_name").String(model.name).Key("model_version").String(kModelVersion);
  writer.Key("output_log_probs");
  WriteElements(response.output_log_probs, write_float, writer);
  if (is_ensemble) writer.Key("sequence_end").Bool(false).Key("sequence_id").Int(0);
  if (response.sequence_index >= 0) writer.Key("sequence_index").Int(response.sequence_index);
  if (is_ensemble) writer.Key("sequence_start").Bool(false);
  writer.Key("text_output");
  WriteElements(
      response.texts, [&writer](const std::string& text) { writer.String(text); }, writer);
  writer.EndObject();
  return out;
}

std::string FormatServer() {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("name").String("triton").Key("version").String("2.56.0");
  writer.Key("extensions")
      .BeginArray()
      .String("parameters")
      .String("generate")
      .EndArray()
      .EndObject();
  return out;
}

std::string FormatModel(const Model& model) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("name").String(model.name);
  writer.Key("versions").BeginArray().String(kModelVersion).EndArray();
  writer.Key("platform").String(model.role == ModelRole::kEnsemble ? "ensemble" : "python");
  writer.Key("inputs");
  WriteTensors(Inputs(), model.role, writer);
  writer.Key("outputs");
  WriteTensors(Outputs(), model.role, writer);
  writer.EndObject();
  return out;
}

}  // namespace tandem::serve::kserve
