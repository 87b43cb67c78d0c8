// The keys of the server itself: of config.properties, and as SERVING_... in the environment.
#include <fmt/format.h>

#include <charconv>

#include "apps/lmi/key_rows.h"

namespace tandem::apps::lmi_rows {
namespace {

using S = LmiSettings;
constexpr int kDay = 86400;

template <auto kField>
LmiKey HttpCode(std::string_view name, std::string_view code, std::string note) {
  return Integer<kField>(name, {{26, code}}, 400, 599, std::move(note));
}

// "20/1m": 20 errors within a minute. The time is a number, 1 if it is left out, and a unit.
Result<serve::lmi::ErrorRate> ParseErrorRate(const std::string& value) {
  const Status error = InvalidArgument(
      fmt::format("must be a number of errors and a time, as 20/1m, not '{}'", value));
  const size_t slash = value.find('/');
  if (slash == std::string::npos || slash + 1 == value.size()) return error;
  const Result<int64_t> errors = ParseInteger(value.substr(0, slash), 1, int64_t{1} << 40);
  if (!errors.ok()) return error;
  std::string time = value.substr(slash + 1);
  int64_t seconds = 1;
  switch (time.back()) {
    case 's':
      break;
    case 'm':
      seconds = 60;
      break;
    case 'h':
      seconds = 3600;
      break;
    case 'd':
      seconds = kDay;
      break;
    default:
      return error;
  }
  time.pop_back();
  if (!time.empty()) {
    const Result<int64_t> count = ParseInteger(time, 1, 100'000);
    if (!count.ok()) return error;
    seconds *= *count;
  }
  return serve::lmi::ErrorRate{*errors, std::chrono::seconds(seconds)};
}

template <auto kField>
LmiKey ErrorRateOf(std::string_view name, std::string note) {
  return {.name = name,
          .type = LmiValue::kWord,
          .defaults = {},
          .effect = LmiEffect::kSetting,
          .option = {},
          .note = std::move(note),
          .take = [](const std::string& value, LmiSettings& settings) -> Status {
            TANDEM_ASSIGN_OR_RETURN(std::invoke(kField, settings), ParseErrorRate(value));
            return {};
          }};
}

Status TakeThreads(const std::string& value, LmiSettings& settings) {
  if (value != "0") settings.options["http_threads"] = value;  // 0: as many as seem right
  return {};
}

Status TakeChunkTimeout(const std::string& value, LmiSettings& settings) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t seconds, ParseInteger(value, 0, kDay));
  settings.http.chunked_read_timeout = std::chrono::seconds(seconds);
  return {};
}

// Names of headers have no case.
Status TakeRequestId(const std::string& value, LmiSettings& settings) {
  std::string name = value;
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  settings.http.request_id_header = std::move(name);
  return {};
}

}  // namespace

std::span<const LmiKey> ServerKeys() {
  static const std::vector<LmiKey> keys = {
      Text<[](S& s) -> auto& { return s.inference_address; }>(
          "inference_address", {{26, "http://0.0.0.0:8080"}},
          "where the server listens (`--host`, `--port`); https with the two files below"),
      Integer<[](S& s) -> auto& { return s.port; }>(
          "port", {}, 0, 65535, "the port instead of that of `inference_address`", "port"),
      Ignored("management_address", {{26, "http://0.0.0.0:8080"}}, "all routes are on one address"),
      Text<[](S& s) -> auto& { return s.model_store; }>("model_store", {{26, "/opt/ml/model"}},
                                                        "folder of the models"),
      Text<[](S& s) -> auto& { return s.load_models; }>(
          "load_models", {{26, "ALL"}},
          "`ALL`: those of the store; `NONE`; or a list of "
          "`[name[:version[:engine[:devices]]]=]url`"),
      Ignored("wait_model_loading", {{26, "true"}}, "the port opens when the models are loaded"),
      Bool<[](S& s) -> auto& { return s.http.allow_multi_status; }>(
          "allow_multi_status", {{26, "false"}}, "`/ping` may answer 207"),
      Integer<[](S& s) -> auto& { return s.http.max_request_size; }>(
          "max_request_size", {{26, "67108864"}}, 1, int64_t{1} << 40, "bytes of a request's body"),
      {.name = "chunked_read_timeout",
       .type = LmiValue::kInteger,
       .defaults = {{26, "120"}},
       .effect = LmiEffect::kSetting,
       .option = {},
       .note = "seconds between two parts of a stream, after which it is ended",
       .take = TakeChunkTimeout},
      ErrorRateOf<[](S& s) -> auto& { return s.http.error_rates.wlm; }>(
          "error_rate_wlm",
          "after this many refused requests within this time (`20/1m`: 20 within a minute) `/ping` "
          "fails"),
      ErrorRateOf<[](S& s) -> auto& { return s.http.error_rates.server; }>(
          "error_rate_server", "the same for failures of the server"),
      ErrorRateOf<[](S& s) -> auto& { return s.http.error_rates.model; }>(
          "error_rate_model", "the same for failures of generation"),
      ErrorRateOf<[](S& s) -> auto& { return s.http.error_rates.any; }>("error_rate_any",
                                                                        "the same for all of them"),
      HttpCode<[](S& s) -> auto& { return s.http.http_codes.bad_request; }>(
          "bad_request_http_code", "400",
          "status of requests that name no model or a wrong token; a body at fault is 424"),
      HttpCode<[](S& s) -> auto& { return s.http.http_codes.wlm_error; }>(
          "wlm_error_http_code", "503", "status while a model takes no request"),
      HttpCode<[](S& s) -> auto& { return s.http.http_codes.throttle_error; }>(
          "throttle_error_http_code", "503", "status when the queue is full"),
      HttpCode<[](S& s) -> auto& { return s.http.http_codes.timeout; }>(
          "timeout_http_code", "400", "status after `option.predict_timeout`"),
      HttpCode<[](S& s) -> auto& { return s.http.http_codes.server_error; }>(
          "server_error_http_code", "500", "status of all other failures"),
      {.name = "request_id_header_key",
       .type = LmiValue::kText,
       .defaults = {{26, "X-Amzn-SageMaker-Inference-Id"}},
       .effect = LmiEffect::kSetting,
       .option = {},
       .note = "header with a request's id",
       .take = TakeRequestId},
      Option("cors_allowed_origin", LmiValue::kText, {}, "cors_origins",
             "origin whose web pages may use the server"),
      Ignored("cors_allowed_methods", {}, "pages may use the methods that the routes have"),
      Ignored("cors_allowed_headers", {}, "pages may send the headers that the routes read"),
      Text<[](S& s) -> auto& { return s.certificate_file; }>(
          "certificate_file", {}, "PEM, for an `https` address (`--tls_cert_file`)"),
      Text<[](S& s) -> auto& { return s.private_key_file; }>(
          "private_key_file", {}, "PEM, for an `https` address (`--tls_key_file`)"),
      Only("keystore", LmiValue::kText, {}, "",
           "is a Java key store; give the certificate and its key "
           "as PEM files, `certificate_file` and `private_key_file`"),
      Ignored("keystore_pass", {}, "see `keystore`"),
      Ignored("keystore_type", {}, "see `keystore`"),
      {.name = "number_of_netty_threads",
       .type = LmiValue::kInteger,
       .defaults = {{26, "0"}},
       .effect = LmiEffect::kOption,
       .option = "http_threads",
       .note = "0: as many as the machine needs",
       .take = TakeThreads},
      Ignored("netty_client_threads", {}, "the server is nobody's client"),
      Ignored("plugin_folder", {{26, "/opt/djl/plugins"}}, "there are no plug-ins"),
      Only("model_url_pattern", LmiValue::kText, {}, "",
           "is a pattern of addresses, which are not "
           "checked; without it models come from where the operator says"),
      Bool<[](S& s) -> auto& { return s.http.keep_healthy; }>(
          "health_check_override", {{26, "false"}},
          "a model that failed does not make `/ping` fail"),
      Ignored("fail_fast", {{26, "false"}},
              "a model that cannot be loaded at start always ends the server"),
      Ignored("features", {{26, "trtllm"}}, "a constant of the image"),
      Option("download_dir", LmiValue::kText, {}, "download_dir",
             "where downloads go; without it into the caches of `HF_HOME` and `DJL_CACHE_DIR`"),
  };
  return keys;
}

}  // namespace tandem::apps::lmi_rows
