// `tandem serve`: options that are refused before a model is loaded, and command lines of Triton.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/cli/arguments.h"
#include "apps/testing/call.h"
#include "base/log.h"
#include "base/testing/source_dir.h"

namespace tandem::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The error of a command line that is wrong.
std::string Refused(std::vector<std::string> words) {
  words.insert(words.begin(), "serve");
  const Ran ran = Call(words);
  EXPECT_EQ(ran.code, 2) << ran.err;
  return ran.err;
}

// Its folder is not there, so a command line that is accepted ends with this.
constexpr const char* kNoRepository = "/nowhere/at/all: No such file or directory";
Ran Accepted(std::vector<std::string> words) {
  words.insert(words.begin(), {"serve", "--model_repo", "/nowhere/at/all"});
  Ran ran = Call(words);
  EXPECT_EQ(ran.code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr(kNoRepository));
  return ran;
}

TEST(ServeOptionsTest, AModelBesideARepositoryIsRefusedByName) {
  EXPECT_THAT(Refused({"dictionary/draft", "--model_repo", "llama_dtm"}),
              AllOf(HasSubstr("--model dictionary/draft: with --model_repo"),
                    HasSubstr("leave out one of the two")));
  for (const std::string option :
       {"engine_dir", "draft", "draft_engine_dir", "dummy", "draft_dummy", "served_model_name"}) {
    EXPECT_THAT(Refused({"--model_repo", "llama_dtm", "--" + option, "x"}),
                HasSubstr("x: with --model_repo"))
        << option;
  }
  EXPECT_THAT(Refused({"--model_repo", "llama_dtm", "--acceptance", "0.5"}),
              HasSubstr("--acceptance 0.5: with --model_repo"));
  EXPECT_THAT(Refused({"--model_repo", "llama_dtm", "--decoupled", "false"}),
              HasSubstr("--decoupled false: with --model_repo"));
}

TEST(ServeOptionsTest, OptionsOfARepositoryWithoutEffectAreRefused) {
  EXPECT_THAT(Refused({"--model_repo", "llama_dtm", "--load_model", "ensemble"}),
              HasSubstr("--load_model: needs --model_control_mode explicit"));
  EXPECT_THAT(Refused({"--load_model", "ensemble"}), HasSubstr("--load_model: needs --model_repo"));
  EXPECT_THAT(Refused({"--model_control_mode", "explicit"}),
              HasSubstr("--model_control_mode: needs --model_repo"));
  EXPECT_THAT(Refused({"--model_repo", "llama_dtm", "--model-control-mode=poll"}),
              AllOf(HasSubstr("--model_control_mode poll"), HasSubstr("use explicit")));
}

TEST(ServeOptionsTest, TritonsCommandLinesStartTheServer) {
  const Ran ran = Accepted(
      {"--model-store=/nowhere/at/all", "--model-control-mode=explicit", "--load-model=*",
       "--allow-http=true", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
       "--metrics-address", "127.0.0.1", "--http-thread-count=8", "--http-max-input-size=1048576",
       "--grpc-use-ssl=false", "--repository-poll-secs=15", "--log-format=ISO8601",
       "--disable-auto-complete-config", "--log-info=false", "--log-warning=true",
       "--model-load-thread-count=4"});
  EXPECT_THAT(ran.err, HasSubstr("without effect here: repository_poll_secs, "
                                 "model_load_thread_count\n"));
}

TEST(ServeOptionsTest, WhatWouldNotBeTrueIsRefusedWithWhatToUseInstead) {
  const std::vector<std::string> repository = {"--model_repo", "/nowhere/at/all"};
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.end(), repository.begin(), repository.end());
    return Refused(words);
  };
  EXPECT_THAT(refused({"--allow-http=false"}), HasSubstr("--allow_http false: HTTP is always"));
  EXPECT_THAT(refused({"--grpc-address=0.0.0.0"}),
              HasSubstr("--grpc_address 0.0.0.0: all ports are on one address; give it as --host"));
  EXPECT_THAT(refused({"--http-restricted-api=model-repository:key=value"}),
              AllOf(HasSubstr("--http_restricted_api: "), HasSubstr("--api_key_file")));
  EXPECT_THAT(refused({"--grpc-use-ssl=true"}),
              HasSubstr("--grpc_use_ssl: needs --grpc_server_cert and --grpc_server_key, or"));
  EXPECT_THAT(
      refused({"--grpc_use_ssl_mutual", "--grpc_server_cert", "c", "--grpc_server_key", "k"}),
      HasSubstr("--grpc_use_ssl_mutual: needs --grpc_root_cert"));
  EXPECT_THAT(refused({"--log-verbose=loud"}), HasSubstr("--log_verbose: 'loud' is no level"));
}

TEST(ServeOptionsTest, FilesOfTlsAreReadBeforeModels) {
  const std::string folder = SourceDir() / "tests/data/tls";
  const std::string certificate = folder + "/certificate.pem";
  const std::string key = folder + "/key.pem";
  Accepted({"--tls_cert_file", certificate, "--tls_key_file", key});
  Accepted({"--ssl_certfile", certificate, "--ssl_keyfile", key, "--grpc_use_ssl"});
  EXPECT_THAT(
      Refused({"--tls_cert_file", certificate}),
      HasSubstr("TLS needs both a certificate and its key: --tls_cert_file and --tls_key_file"));
  EXPECT_THAT(Refused({"--tls_cert_file", certificate, "--tls_key_file", certificate}),
              HasSubstr("certificate.pem: is no private key"));
  EXPECT_THAT(
      Refused({"--model_repo", "llama_dtm", "--grpc_server_cert", key, "--grpc_server_key", key}),
      HasSubstr("key.pem: is no certificate"));
}

TEST(ServeOptionsTest, VllmsOptionsAreOtherNamesOrNameOurs) {
  Accepted({"--max-num-seqs", "8", "--max-model-len", "1024", "--tool-call-parser", "llama3_json",
            "--enable-auto-tool-choice", "--dtype", "auto"});
  EXPECT_THAT(Refused({"--gpu-memory-utilization", "0.9"}),
              HasSubstr("--kv_cache_free_gpu_mem_fraction"));
  EXPECT_THAT(Refused({"--enable-auto-tool-choice", "false"}), HasSubstr("tool_choice"));
}

TEST(ServeOptionsTest, AnOriginIsNoAddressOfAPage) {
  Accepted({"--cors_origins", "https://chat.example,http://localhost:3000"});
  EXPECT_THAT(Refused({"--cors_origins", "https://chat.example/"}),
              AllOf(HasSubstr("--cors_origins: "), HasSubstr("is no origin")));
}

TEST(ServeOptionsTest, TritonsLogFlagsSetTheLevel) {
  const auto enabled = [](std::vector<std::string> words) {
    Accepted(std::move(words));
    return std::vector<bool>{LogEnabled(LogLevel::kDebug), LogEnabled(LogLevel::kInfo),
                             LogEnabled(LogLevel::kWarning), LogEnabled(LogLevel::kError)};
  };
  using Levels = std::vector<bool>;
  EXPECT_EQ(enabled({}), (Levels{false, false, true, true}));
  EXPECT_EQ(enabled({"--log-verbose=3"}), (Levels{true, true, true, true}));
  EXPECT_EQ(enabled({"--log-verbose=0", "--log-info=1"}), (Levels{false, true, true, true}));
  EXPECT_EQ(enabled({"--log-warning=false"}), (Levels{false, false, false, true}));
  EXPECT_EQ(enabled({"--log-level", "info"}), (Levels{false, true, true, true}));
}

TEST(ServeOptionsTest, ALogThatCannotBeWrittenIsToldWhereTheServerWasStarted) {
  EXPECT_THAT(Refused({"--log_file", "/nowhere/x.log"}),
              HasSubstr("--log_file: /nowhere/x.log cannot be written: No such file"));
  const Ran full = Call({"serve", "--port", "0", "--log_file", "/dev/full"});
  EXPECT_EQ(full.code, 5);
  EXPECT_THAT(full.err, HasSubstr("--log_file /dev/full: stdout: cannot write: No space left"));
}

}  // namespace
}  // namespace tandem::apps
