// `tandem bench speculative`: plain and speculative decoding of a dummy pair in one run, by batch,
// by the share of tokens on which the draft agrees, and by draft length.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

struct Point {
  double agreement = 0;   // of the dummy draft
  int32_t draft_len = 0;  // 0: chosen automatically
  int32_t batch = 0;
  double plain = 0;  // tokens per second
  double speculative = 0;
  double accepted = 0;    // share of the verified drafts
  double step_share = 0;  // of plain decoding's limit
};

Result<Point> Measure(Session& session, int32_t batch, int32_t input_len, int32_t output_len,
                      int32_t runs, Limits& limits) {
  TANDEM_ASSIGN_OR_RETURN(
      std::vector<Request> requests,
      BenchRequests(session, static_cast<size_t>(batch), input_len, output_len));
  // Prompts first: both ways of decoding then find them in the cache, and neither waits for other
  // sequences' prompts.
  std::vector<Request> prompts = requests;
  for (Request& prompt : prompts) prompt.max_tokens = 4;
  TANDEM_ASSIGN_OR_RETURN(const LoadReport warm, RunRequests(session, prompts, batch, true));
  Point point;
  point.batch = batch;
  for (int32_t run = 0; run < runs; ++run) {
    limits.Measure(session);
    TANDEM_ASSIGN_OR_RETURN(const LoadReport plain, RunRequests(session, requests, batch, false));
    TANDEM_ASSIGN_OR_RETURN(const LoadReport drafted, RunRequests(session, requests, batch, true));
    point.plain = std::max(point.plain, plain.DecodeRate(batch));
    point.speculative = std::max(point.speculative, drafted.DecodeRate(batch));
    point.accepted = drafted.Acceptance();
  }
  const auto context = static_cast<int64_t>(requests.front().prompt.size()) + output_len / 2;
  point.step_share = point.plain / batch * limits.StepSeconds(session, batch, context);
  return point;
}

}  // namespace

Status BenchSpeculative(const BenchOptions& options, const OptionValues& values, Console& console) {
  TANDEM_RETURN_IF_ERROR(RefuseReplicas("speculative", values));
  const ModelOptions models = ModelOptionRows().Read(values);
  if (models.dummy.empty() || models.draft_dummy.empty()) {
    return InvalidArgument("bench speculative: name the shapes with --dummy and --draft_dummy");
  }
  if (EngineOptionsFrom(values).draft_mode == DraftMode::kOff) {
    return InvalidArgument(
        "bench speculative: compares with and without drafts: leave out --no_draft");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, QueueForAll));
  if (session->follows()) return FollowSession(*session);
  console.Say(fmt::format("{}; target {}, draft {}", MachineLine(*session), session->target.name,
                          session->draft->name));
  console.Say("agrees  draft  batch        plain  of limit  speculative  speedup  accepted");
  Limits limits;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const double agreement : options.acceptances) {
    TANDEM_RETURN_IF_ERROR(LoadDummyDraft(agreement, *session, console));
    for (const int32_t draft_len : options.draft_lens) {
      EngineOptions engine = session->options.engine;
      engine.draft_mode = draft_len > 0 ? DraftMode::kFixed : DraftMode::kAdaptive;
      engine.fixed_draft_len = draft_len;
      engine.max_draft_len = std::max(engine.max_draft_len, draft_len);
      TANDEM_RETURN_IF_ERROR(MakeEngine(*session, engine));
      session->engine->Start();
      for (const int32_t batch : options.batches) {
        TANDEM_ASSIGN_OR_RETURN(Point point, Measure(*session, batch, options.input_lens.front(),
                                                     options.output_len, options.runs, limits));
        point.agreement = agreement;
        point.draft_len = draft_len;
        console.Say(
            fmt::format("{:6.2f}  {:>5}  {:5}  {:11.1f}  {:6.1f} %  {:11.1f}  {:6.2f}x  {:6.1f} %",
                        point.agreement, draft_len > 0 ? std::to_string(draft_len) : "auto",
                        point.batch, point.plain, point.step_share * 100, point.speculative,
                        point.speculative / point.plain, point.accepted * 100));
        rows.push_back({{"agreement", point.agreement},
                        {"draft_len", point.draft_len},
                        {"batch", point.batch},
                        {"plain_tokens_per_s", point.plain},
                        {"share_of_step_limit", point.step_share},
                        {"draft_tokens_per_s", point.speculative},
                        {"speedup", point.speculative / point.plain},
                        {"acceptance", point.accepted}});
      }
    }
  }
  const nlohmann::ordered_json json = {{"machine", MachineLine(*session)},
                                       {"target", session->target.name},
                                       {"draft", session->draft->name},
                                       {"read_bytes_per_s", limits.read_bandwidth},
                                       {"rows", rows}};
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
