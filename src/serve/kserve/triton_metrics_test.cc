#include "serve/kserve/triton_metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "serve/kserve/models/builtin_models.h"
#include "serve/testing/test_server.h"

namespace tandem::serve::kserve {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The text has exactly this line.
testing::AssertionResult Has(const std::string& text, const std::string& line) {
  if (std::ranges::count(Lines(text), line) == 1) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "not once: " << line << "\nin\n" << text;
}

ModelFigures FiguresOfAModel() {
  ModelStatistics statistics;
  statistics.Begin();
  statistics.FirstResponse(milliseconds(400));
  statistics.Succeed(/*batch=*/4, milliseconds(700), /*queued=*/milliseconds(100));
  statistics.Begin();
  statistics.Fail(FailureReason::kRejected, milliseconds(1));
  statistics.Begin();
  return {"tensorrt_llm", /*is_decoupled=*/true, statistics.Snapshot(), {}};
}

TEST(TritonMetricsTest, FiguresOfAModelHaveTheirKnownNames) {
  const std::vector<ModelFigures> models = {FiguresOfAModel()};
  const std::string text = FormatTritonMetrics(models, {}, {}, 0);
  const std::string labels = R"({model="tensorrt_llm",version="1"})";
  EXPECT_TRUE(Has(text, "nv_inference_request_success" + labels + " 1"));
  EXPECT_TRUE(Has(text, "nv_inference_count" + labels + " 4"));
  EXPECT_TRUE(Has(text, "nv_inference_exec_count" + labels + " 1"));
  EXPECT_TRUE(Has(text, "nv_inference_request_duration_us" + labels + " 700000"));
  EXPECT_TRUE(Has(text, "nv_inference_queue_duration_us" + labels + " 100000"));
  EXPECT_TRUE(Has(text, "nv_inference_compute_input_duration_us" + labels + " 0"));
  EXPECT_TRUE(Has(text, "nv_inference_compute_infer_duration_us" + labels + " 600000"));
  EXPECT_TRUE(Has(text, "nv_inference_compute_output_duration_us" + labels + " 0"));
  EXPECT_TRUE(Has(text, "nv_inference_pending_request_count" + labels + " 1"));
  const auto failures = [](const char* reason, int count) {
    return fmt::format(
        R"(nv_inference_request_failure{{model="tensorrt_llm",reason="{}",version="1"}} {})",
        reason, count);
  };
  EXPECT_TRUE(Has(text, failures("REJECTED", 1)));
  EXPECT_TRUE(Has(text, failures("CANCELED", 0)));
  EXPECT_TRUE(Has(text, failures("BACKEND", 0)));
  EXPECT_TRUE(Has(text, failures("OTHER", 0)));
  const std::string first = "nv_inference_first_response_histogram_ms";
  const auto bucket = [&](const char* bound, int count) {
    return fmt::format(R"({}_bucket{{model="tensorrt_llm",version="1",le="{}"}} {})", first, bound,
                       count);
  };
  EXPECT_TRUE(Has(text, bucket("100", 0)));
  EXPECT_TRUE(Has(text, bucket("500", 1)));
  EXPECT_TRUE(Has(text, bucket("+Inf", 1)));
  EXPECT_TRUE(Has(text, first + "_sum" + labels + " 400"));
  EXPECT_TRUE(Has(text, first + "_count" + labels + " 1"));
}

TEST(TritonMetricsTest, FiguresOfAnEngineHaveTheirKnownNames) {
  EngineFigures engine{.model = "tensorrt_llm", .stats = {}, .lengths = {}};
  engine.stats.max_running = 64;
  engine.stats.running = 3;
  engine.stats.waiting = 2;
  engine.stats.paused = 1;
  engine.stats.step = {.context_requests = 1, .context_tokens = 500, .generation_requests = 2};
  engine.stats.memory = {.cpu = 1000, .gpu = 3000, .pinned = 200};
  engine.stats.steps = 77;
  engine.stats.kv = {.total_blocks = 100,
                     .free_blocks = 50,
                     .cached_blocks = 30,
                     .referenced_blocks = 20,
                     .block_tokens = 32,
                     .hit_tokens = 96};
  engine.lengths.input.Add(10);
  engine.lengths.input.Add(70);
  engine.lengths.output.Add(2000);
  const std::string text = FormatTritonMetrics({}, {&engine, 1}, {}, 1700000000000001);
  const auto line = [](const char* family, const char* labels, const char* value) {
    return fmt::format("nv_trt_llm_{}_metrics{{{}}} {}", family, labels, value);
  };
  const auto requests = [&](const char* type, const char* value) {
    return fmt::format(
        R"(nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="{}",version="1"}} {})",
        type, value);
  };
  EXPECT_TRUE(Has(text, requests("active", "5")));
  EXPECT_TRUE(Has(text, requests("context", "1")));
  EXPECT_TRUE(Has(text, requests("max", "64")));
  EXPECT_TRUE(Has(text, requests("scheduled", "3")));
  EXPECT_TRUE(Has(text, requests("waiting", "2")));
  const auto blocks = [&](const char* type, const char* value) {
    return fmt::format(R"(nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{}",)"
                       R"(model="tensorrt_llm",version="1"}} {})",
                       type, value);
  };
  EXPECT_TRUE(Has(text, blocks("max", "100")));
  EXPECT_TRUE(Has(text, blocks("free", "80")));
  EXPECT_TRUE(Has(text, blocks("used", "20")));
  EXPECT_TRUE(Has(text, blocks("tokens_per", "32")));
  EXPECT_TRUE(Has(text, blocks("reused", "3")));
  EXPECT_TRUE(Has(text, blocks("fraction", "0.2")));
  const auto memory = [&](const char* type, const char* value) {
    return fmt::format(R"(nv_trt_llm_runtime_memory_metrics{{memory_type="{}",)"
                       R"(model="tensorrt_llm",version="1"}} {})",
                       type, value);
  };
  EXPECT_TRUE(Has(text, memory("cpu", "1000")));
  EXPECT_TRUE(Has(text, memory("gpu", "3000")));
  EXPECT_TRUE(Has(text, memory("pinned", "200")));
  const auto batcher = [&](const char* metric, const char* value) {
    return fmt::format(R"(nv_trt_llm_inflight_batcher_metrics{{)"
                       R"(inflight_batcher_specific_metric="{}",model="tensorrt_llm",)"
                       R"(version="1"}} {})",
                       metric, value);
  };
  EXPECT_TRUE(Has(text, batcher("generation_requests", "2")));
  EXPECT_TRUE(Has(text, batcher("micro_batch_id", "0")));
  EXPECT_TRUE(Has(text, batcher("paused_requests", "1")));
  EXPECT_TRUE(Has(text, batcher("total_context_tokens", "500")));
  EXPECT_TRUE(Has(
      text, line("general", R"(general_type="iteration_counter",model="tensorrt_llm",version="1")",
                 "77")));
  EXPECT_TRUE(
      Has(text, line("general", R"(general_type="timestamp",model="tensorrt_llm",version="1")",
                     "1700000000000001")));
  const auto length = [](const char* kind, const char* end, const char* value) {
    return fmt::format(R"(nv_llm_{}_token_len_bucket{{model="tensorrt_llm",)"
                       R"(response_metric_type="total_{}_tokens",version="1",le="{}"}} {})",
                       kind, kind, end, value);
  };
  EXPECT_TRUE(Has(text, length("input", "10", "1")));
  EXPECT_TRUE(Has(text, length("input", "50", "1")));
  EXPECT_TRUE(Has(text, length("input", "100", "2")));
  EXPECT_TRUE(Has(text, length("input", "+Inf", "2")));
  EXPECT_TRUE(Has(text, length("output", "1000", "0")));
  EXPECT_TRUE(Has(text, length("output", "+Inf", "1")));
  EXPECT_TRUE(Has(text, R"(nv_llm_input_token_len_sum{model="tensorrt_llm",)"
                        R"(response_metric_type="total_input_tokens",version="1"} 80)"));
}

TEST(TritonMetricsTest, LabelsStandInTheOrderOfTheirNames) {
  const std::vector<ModelFigures> models = {FiguresOfAModel()};
  const EngineFigures engine{.model = "m", .stats = {}, .lengths = {}};
  for (const std::string& line : Lines(FormatTritonMetrics(models, {&engine, 1}, {}, 0))) {
    const size_t begin = line.find('{');
    if (line.starts_with('#') || begin == std::string::npos) continue;
    std::istringstream labels(line.substr(begin + 1, line.find('}') - begin - 1));
    std::vector<std::string> names;
    for (std::string label; std::getline(labels, label, ',');) {
      const std::string name = label.substr(0, label.find('='));
      if (name != "le") names.push_back(name);
    }
    EXPECT_TRUE(std::ranges::is_sorted(names)) << line;
    EXPECT_EQ(std::ranges::count(line, ' '), 1) << line;
  }
}

TEST(TritonMetricsTest, AFigureWithoutASourceIsAbsent) {
  const std::string none = FormatTritonMetrics({}, {}, {}, 0);
  EXPECT_EQ(none, "");
  const std::string host = FormatTritonMetrics(
      {}, {}, {.cpu_utilization = 0.25, .memory_total = 1000, .memory_used = {}, .gpus = {}}, 0);
  EXPECT_TRUE(Has(host, "nv_cpu_utilization 0.25"));
  EXPECT_TRUE(Has(host, "nv_cpu_memory_total_bytes 1000"));
  EXPECT_THAT(host, Not(HasSubstr("nv_cpu_memory_used_bytes")));
  EXPECT_THAT(host, Not(HasSubstr("nv_gpu")));
}

TEST(TritonMetricsTest, FiguresOfGpusHaveTheirKnownNames) {
  HostFigures host;
  host.gpus.push_back({.uuid = "GPU-1",
                       .utilization = 0.75,
                       .memory_total = 8000,
                       .memory_used = 2000,
                       .power_usage = 350.5,
                       .power_limit = 700,
                       .energy = 1.5});
  host.gpus.emplace_back().uuid = "GPU-2";
  host.gpus.back().memory_total = 16000;
  const std::string text = FormatTritonMetrics({}, {}, host, 0);
  EXPECT_TRUE(Has(text, R"(nv_gpu_utilization{gpu_uuid="GPU-1"} 0.75)"));
  EXPECT_TRUE(Has(text, R"(nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 8000)"));
  EXPECT_TRUE(Has(text, R"(nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 2000)"));
  EXPECT_TRUE(Has(text, R"(nv_gpu_power_usage{gpu_uuid="GPU-1"} 350.5)"));
  EXPECT_TRUE(Has(text, R"(nv_gpu_power_limit{gpu_uuid="GPU-1"} 700)"));
  EXPECT_TRUE(Has(text, R"(nv_energy_consumption{gpu_uuid="GPU-1"} 1.5)"));
  EXPECT_TRUE(Has(text, "# TYPE nv_energy_consumption counter"));
  EXPECT_TRUE(Has(text, R"(nv_gpu_memory_total_bytes{gpu_uuid="GPU-2"} 16000)"));
  EXPECT_THAT(text, Not(HasSubstr(R"(nv_gpu_utilization{gpu_uuid="GPU-2"})")));
}

TEST(TritonMetricsTest, AnAnswerReadsTheGpusOnce) {
  std::atomic<int> reads{0};
  ServerOptions options;
  options.read_gpus = [&reads] {
    ++reads;
    std::vector<GpuUsage> gpus(1);
    gpus[0].uuid = "GPU-1";
    gpus[0].utilization = 0.5;
    return gpus;
  };
  TestServer server({}, options);
  EXPECT_THAT(server.Client().Get("/metrics")->body,
              HasSubstr("\nnv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.5\n"));
  EXPECT_EQ(reads, 1);
}

TEST(TritonMetricsTest, TheTimeToLoadIsThatFromLoadingToReady) {
  FakeClock clock;
  Repository models(clock);
  inference::ModelConfig config;
  config.set_name("simple");
  config.set_backend("add_sub");
  models.SetState("simple", ModelState::kLoading, "");
  clock.Advance(milliseconds(2500));
  models.Add(MakeBuiltinModel(config).value());
  config.set_name("at_once");
  models.Add(MakeBuiltinModel(config).value());
  const std::string text = FormatTritonMetrics(models.Figures(), {}, {}, 0);
  EXPECT_TRUE(Has(text, R"(nv_model_load_duration_secs{model="simple",version="1"} 2.5)"));
  EXPECT_THAT(text, Not(HasSubstr(R"(nv_model_load_duration_secs{model="at_once")")));
}

TEST(TritonMetricsTest, AnEnsembleCountsForEachOfItsMembers) {
  ServerOptions options;
  options.metrics_port = 0;
  TestServer server({}, options);
  const auto generate = [&](const char* model, const char* body) {
    return server.Client().Post(fmt::format("/v2/models/{}/generate", model), body)->status;
  };
  EXPECT_EQ(generate("ensemble", R"({"text_input":"tandem","max_tokens":8})"), 200);
  EXPECT_EQ(generate("ensemble", R"({"text_input":"tandem","max_tokens":8})"), 200);
  EXPECT_EQ(generate("tensorrt_llm", R"({"input_ids":[5],"input_lengths":1,)"
                                     R"("request_output_len":4})"),
            200);
  EXPECT_EQ(generate("ensemble", "{}"), 400);
  HttpClient metrics_client("127.0.0.1", server.server->metrics_port());
  const std::string text = metrics_client.Get("/metrics")->body;
  const auto success = [](const char* model, int count) {
    return fmt::format(R"(nv_inference_request_success{{model="{}",version="1"}} {})", model,
                       count);
  };
  EXPECT_TRUE(Has(text, success("ensemble", 2)));
  EXPECT_TRUE(Has(text, success("preprocessing", 2)));
  EXPECT_TRUE(Has(text, success("tensorrt_llm", 3)));
  EXPECT_TRUE(Has(text, success("postprocessing", 2)));
  EXPECT_TRUE(Has(text, success("tensorrt_llm_bls", 0)));
  EXPECT_TRUE(Has(text, R"(nv_inference_request_failure{model="ensemble",reason="REJECTED",)"
                        R"(version="1"} 1)"));
  EXPECT_TRUE(Has(text, R"(nv_inference_pending_request_count{model="ensemble",version="1"} 0)"));
  // The engine has its own name, and counts what every model asked of it.
  EXPECT_TRUE(Has(text, R"(nv_llm_input_token_len_count{model="tandem",)"
                        R"(response_metric_type="total_input_tokens",version="1"} 3)"));
  EXPECT_THAT(text, HasSubstr("nv_cpu_memory_used_bytes "));
  EXPECT_THAT(text, HasSubstr("\ntandem_requests_running "));
  EXPECT_THAT(server.Client().Get("/metrics")->body, HasSubstr("nv_inference_count{"));
}

}  // namespace
}  // namespace tandem::serve::kserve
