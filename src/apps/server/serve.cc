// `tandem serve`: serves models over HTTP and gRPC.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include "apps/cli/legacy_options.h"
#include "apps/cli/output_file.h"
#include "apps/cli/text_verbs.h"
#include "apps/cli/version.h"
#include "apps/llgtrt/options.h"
#include "apps/lmi/serving.h"
#include "apps/models/grammar_options.h"
#include "apps/server/serve_models.h"
#include "apps/server/serve_options.h"
#include "apps/server/serve_output.h"
#include "apps/server/triton_options.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/reaper.h"
#include "serve/gpu_usage.h"
#include "serve/server/server.h"

namespace tandem::apps {
namespace {

// The backend of the first engine, which may be loaded while the server runs, and the most ranks of
// an engine. Any thread.
class FirstBackend {
 public:
  void Offer(const Session& session) {
    const MutexLock lock(mutex_);
    if (backend_ == nullptr) backend_ = session.backend;
    ranks_ = std::max(ranks_, session.options.ranks.count());
  }
  std::shared_ptr<ops::Backend> Get() const {  // null: there is no engine yet
    const MutexLock lock(mutex_);
    return backend_;
  }
  int32_t ranks() const {  // 0: likewise
    const MutexLock lock(mutex_);
    return ranks_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<ops::Backend> backend_ TANDEM_GUARDED_BY(mutex_);
  int32_t ranks_ TANDEM_GUARDED_BY(mutex_) = 0;
};

// The first process of a container has no default action for signals, so while models are loaded it
// would ignore them. From its start on the server handles them.
void EndAtSignals() {
  if (::getpid() != 1) return;
  struct sigaction action{};
  action.sa_handler = [](int signal) { std::_Exit(128 + signal); };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

Status Serve(const OptionValues& values, const LlgtrtServing& llgtrt,
             const std::optional<LmiServing>& lmi, const ServeOptions& options, Console& console) {
  TANDEM_RETURN_IF_ERROR(SetTritonLog(values));
  for (const auto& file : llgtrt.files) console.Say("configuration: " + file.string());
  NameLegacyOptions(values, LegacyServeRows());
  TANDEM_ASSIGN_OR_RETURN(serve::ServerOptions server_options, ServerOptionsFrom(values, options));
  server_options.version = Version();
  TANDEM_ASSIGN_OR_RETURN(const RankWorld world,
                          WorldOf(ProcessOptionRows().Read(values), ::getenv));
  if (world.size > 1 && !options.model_repo.empty()) {
    return InvalidArgument(
        "--model_repo: several processes serve one model; name the model, or start one process "
        "(without mpirun, or with --num_processes 1)");
  }
  if (world.rank == 0) {
    TANDEM_RETURN_IF_ERROR(serve::CheckPort(server_options.http.host, server_options.http.port));
  }
  if (lmi) server_options.lmi = lmi->http();
  server_options.on_shutdown = [&](int requests) {
    SayShutdown(server_options, requests, console);
  };
  const auto limit_wait = [&](EngineOptions& engine) {
    engine.max_queue_wait = options.max_queue_wait;
  };
  const serve::ServiceOptions service_options = ServiceOptionsFrom(values);
  TextSettings text = llgtrt.text;
  text.grammars = GrammarRows().Read(values);
  SharedResources shared;
  FirstBackend backend;
  serve::Metrics metrics({.version = Version(),
                          .commit = Commit(),
                          .free_memory = [&backend]() -> std::optional<int64_t> {
                            const auto first = backend.Get();
                            if (first == nullptr) return std::nullopt;
                            return first->FreeBytes();
                          },
                          .ranks = [&backend] { return backend.ranks(); }});
  const auto gpus = options.allow_gpu_metrics ? serve::GpuMeter::Load() : nullptr;
  if (gpus != nullptr) server_options.read_gpus = [&gpus] { return gpus->Read(); };
  const SteadyClock clock;
  Reaper reaper;
  ServedModels served(clock);
  if (llgtrt.any_model_name) served.registry.TakeAnyName();
  if (options.allow_shared_memory) served.models.shared_memory().Allow();
  // A model that is added while the server ends must not hold it up.
  shared.check = [&models = served.models] {
    return models.is_leaving() ? Unavailable("the server is shutting down") : Status();
  };
  bool is_starting = true;
  std::optional<Status> followed;  // how a process that follows another one has ended
  const ModelRepository::OpenEngine open =
      [&](const OptionValues& asked) -> Result<std::shared_ptr<ServedEngine>> {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ServedEngine> engine,
                            OpenServedEngine(asked, console, service_options, text, metrics,
                                             limit_wait, reaper, &shared));
    if (engine->session->follows()) {
      followed = FollowSession(*engine->session);
      return Cancelled("this process serves nobody: it has followed another one");
    }
    backend.Offer(*engine->session);
    if (is_starting) served.engines.push_back(engine);
    return engine;
  };
  const Status opened = lmi ? OpenLmiModels(*lmi, SystemLmiAccess(values, shared.check), options,
                                            open, values, served)
                            : OpenModels(options, open, values, served);
  if (followed) return *followed;
  TANDEM_RETURN_IF_ERROR(opened);
  server_options.lmi_loader = served.loader.get();
  is_starting = false;
  TANDEM_ASSIGN_OR_RETURN(const auto server, serve::Server::Start(server_options, served.registry,
                                                                  served.models, metrics));
  if (const auto first = backend.Get(); first != nullptr) SayDevice(*first, console);
  for (const auto& engine : served.engines) SayMemory(*engine, console);
  const Clients clients = lmi                     ? Clients::kLmi
                          : llgtrt.any_model_name ? Clients::kLlgtrt
                                                  : Clients::kTriton;
  SayModels(served.models, clients, console);
  SayAddress(server_options, served, *server, clients, console);
  TANDEM_RETURN_IF_ERROR(console.status());  // nobody would know the address
  served.engines.clear();                    // they live as long as they are served
  return server->Run();
}

// What the server says goes to the file with its log, as readers of the log expect. The error that
// ends it is told to whoever started it as well.
Status Run(const OptionValues& given, Console& console) {
  EndAtSignals();
  OptionValues values = given;
  TANDEM_ASSIGN_OR_RETURN(const std::optional<LmiServing> lmi,
                          LmiServing::Take(ProcessEnvironment(), values));
  if (lmi && values.Flag(*values.Find("print_config"))) {
    TANDEM_ASSIGN_OR_RETURN(const std::string shown, lmi->Show(values));
    console.SayPart(shown);
    return console.status();
  }
  TANDEM_ASSIGN_OR_RETURN(
      const LlgtrtServing llgtrt,
      TakeLlgtrt(values, lmi                                           ? ModelsFrom::kLmi
                         : ServeOptionsFrom(values).model_repo.empty() ? ModelsFrom::kOptions
                                                                       : ModelsFrom::kRepository));
  if (llgtrt.printed) {
    console.SayPart(*llgtrt.printed);
    return console.status();
  }
  const ServeOptions options = ServeOptionsFrom(values);
  if (options.log_file.empty()) return Serve(values, llgtrt, lmi, options, console);
  auto file = OutputFile::Open(options.log_file);
  if (!file.ok()) return file.status().Annotate("--log_file");
  Status status = Serve(values, llgtrt, lmi, options, console);
  if (const Status& written = console.status(); !written.ok()) {
    status = written.Annotate("--log_file " + options.log_file);
  }
  if (!status.ok()) LogError("{}", status.message());
  return status;
}

}  // namespace

Command ServeCommand() {
  return {
      .name = "serve",
      .summary =
          "Serve a target and its draft, or a model repository: the inference protocol (KServe "
          "v2, as Triton) over HTTP and gRPC, and the OpenAI API",
      .examples =
          "  tandem serve                          # the embedded pair on 127.0.0.1:8000\n"
          "  tandem serve MODEL DRAFT --port 8080 --grpc_port 8001\n"
          "  tandem serve --model_repo REPO        # folders with a config.pbtxt each\n"
          "  tandem serve MODEL --host 0.0.0.0 --api_key_file keys.txt\n"
          "  tandem serve FOLDER                   # with a serving.properties: as LMI containers\n"
          "  tandem serve MODEL DRAFT --as_llgtrt --debug   # as launch-llgtrt.sh starts it\n",
      .options = SessionOptionRows(ServeOptionRows()),
      .run = Run};
}

}  // namespace tandem::apps
