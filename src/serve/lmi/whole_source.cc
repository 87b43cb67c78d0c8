#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "serve/lmi/answer_form.h"
#include "serve/lmi/errors.h"
#include "serve/openai/completions/response.h"

namespace tandem::serve::lmi {
namespace {

// An answer that is sent when it is complete.
class WholeSource final : public MessageSource {
 public:
  WholeSource(AnswerForm form, std::unique_ptr<GenerateCall> generate)
      : form_(std::move(form)), generate_(std::move(generate)) {}

  CallNews Next(HttpHead&, std::vector<std::string>& messages, Status& error) override {
    TextEvent event;
    const CallNews news = generate_->Next(event);
    if (news == CallNews::kFailed) error = std::move(event.error);
    if (news == CallNews::kDone) messages.push_back(Format());
    return news;
  }

  HttpHead ErrorHead(const Status& error) const override {
    return lmi::ErrorHead(error, *form_.settings);
  }

  std::string FormatError(const Status& error) const override {
    if (FaultOf(error) != Fault::kGeneration) return FormatFault(error, *form_.settings);
    return FormatFailure(error);
  }

 private:
  std::string Format() const {
    if (form_.call.formatter == OutputFormatter::kNone) return FormatText();
    std::string out;
    JsonWriter writer(out, /*spaces=*/true);
    const bool in_array = form_.call.is_list || form_.dialect.tgi_compat;
    if (in_array) writer.BeginArray();
    if (form_.call.is_list) {
      for (size_t i = 0; i < generate_->answers().size(); ++i) WritePlain(i, writer);
    } else {
      WriteOne(writer);
    }
    if (in_array) writer.EndArray();
    return out;
  }

  std::string FormatText() const {
    std::string out;
    for (size_t i = 0; i < form_.call.inputs.size(); ++i) {
      out += PrefixOf(form_, i);
      out += generate_->answers().at(i).text;
    }
    return out;
  }

  void WriteText(const TextChoice& answer, size_t input, JsonWriter& writer) const {
    writer.Key("generated_text").String(std::string(PrefixOf(form_, input)) + answer.text);
  }

  void WritePlain(size_t input, JsonWriter& writer) const {
    writer.BeginObject();
    WriteText(generate_->answers().at(input), input, writer);
    writer.EndObject();
  }

  // The best answer, and the others that were asked for in its details.
  void WriteOne(JsonWriter& writer) const {
    std::vector<const TextChoice*> best =
        openai::BestChoices(generate_->answers(), static_cast<size_t>(form_.call.num_generated),
                            static_cast<size_t>(form_.call.num_choices));
    if (best.size() > 1) {
      std::ranges::stable_sort(best, std::ranges::greater(), [](const TextChoice* answer) {
        return openai::MeanLogprob(answer->pieces);
      });
    }
    const CallUsage usage = generate_->usage();
    const TextCodec& codec = generate_->model().service->codec();
    writer.BeginObject();
    WriteText(*best.front(), 0, writer);
    if (form_.call.details) {
      writer.Key("details").BeginObject();
      WriteWholeDetails(form_, {*best.front(), 0, usage}, codec, writer);
      if (best.size() > 1) {
        writer.Key("best_of_sequences").BeginArray();
        for (size_t i = 1; i < best.size(); ++i) {
          writer.BeginObject();
          WriteWholeDetails(form_, {*best[i], 0, usage}, codec, writer);
          WriteText(*best[i], 0, writer);
          writer.EndObject();
        }
        writer.EndArray();
      }
      writer.EndObject();
    }
    writer.EndObject();
  }

  std::string FormatFailure(const Status& error) const {
    std::string out;
    JsonWriter writer(out, /*spaces=*/true);
    const bool is_old = form_.dialect.generation == Generation::k026;
    writer.BeginObject().Key("generated_text");
    is_old ? writer.String("") : writer.Null();
    if (!is_old) writer.Key("error").String(error.message()).Key("code").Int(400);
    writer.Key("details").BeginObject().Key("finish_reason").String("error");
    if (is_old) {
      writer.Key("generated_tokens").Null().Key("inputs").Null().Key("tokens").Null();
    }
    writer.EndObject().EndObject();
    return out;
  }

  const AnswerForm form_;
  const std::unique_ptr<GenerateCall> generate_;
};

}  // namespace

std::unique_ptr<MessageSource> MakeWholeSource(AnswerForm form,
                                               std::unique_ptr<GenerateCall> generate) {
  return std::make_unique<WholeSource>(std::move(form), std::move(generate));
}

}  // namespace tandem::serve::lmi
