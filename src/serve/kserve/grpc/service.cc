#include "serve/kserve/grpc/service.h"

#include <fmt/format.h>
#include <grpc_service.grpc.pb.h>
#include <grpcpp/support/server_callback.h>
#include <health.grpc.pb.h>
#include <model_config.pb.h>

#include <optional>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "serve/kserve/control.h"
#include "serve/kserve/grpc/translate.h"
#include "serve/kserve/log_settings.h"
#include "serve/kserve/server_metadata.h"
#include "serve/kserve/shared_memory.h"

namespace tandem::serve::kserve {
namespace {

using Context = ::grpc::CallbackServerContext;
using UnaryReactor = ::grpc::ServerUnaryReactor;

// The first value of a request's metadata; empty if there is none.
std::string_view MetadataOf(const Context& context, std::string_view name) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(::grpc::string_ref(name.data(), name.size()));
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

// A message names no model by an empty name.
std::optional<std::string_view> ModelName(std::string_view name) {
  return name.empty() ? std::nullopt : std::optional(name);
}

UnaryReactor* Finish(Context& context, const Status& status) {
  UnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// A stream that ends at once.
class RefusedStream final
    : public ::grpc::ServerBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer> {
 public:
  explicit RefusedStream(const Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

// All RPCs with callbacks, and those that infer with messages as bytes.
using Generated = inference::GRPCInferenceService;
using InferenceRpcs = Generated::WithCallbackMethod_LogSettings<
    Generated::WithCallbackMethod_TraceSetting<Generated::WithCallbackMethod_CudaSharedMemoryUnregister<
        Generated::WithCallbackMethod_CudaSharedMemoryRegister<Generated::WithCallbackMethod_CudaSharedMemoryStatus<
            Generated::WithCallbackMethod_SystemSharedMemoryUnregister<
                Generated::WithCallbackMethod_SystemSharedMemoryRegister<
                    Generated::WithCallbackMethod_SystemSharedMemoryStatus<
                        Generated::WithCallbackMethod_RepositoryModelUnload<
                            Generated::WithCallbackMethod_RepositoryModelLoad<
                                Generated::WithCallbackMethod_RepositoryIndex<
                                    Generated::WithCallbackMethod_ModelStatistics<
                                        Generated::WithCallbackMethod_ModelConfig<
                                            Generated::WithCallbackMethod_ModelMetadata<
                                                Generated::WithCallbackMethod_ServerMetadata<
                                                    Generated::WithCallbackMethod_ModelReady<
                                                        Generated::WithCallbackMethod_ServerReady<
                                                            Generated::WithCallbackMethod_ServerLive<
                                                                Generated::WithRawCallbackMethod_ModelInfer<
                                                                    Generated::WithRawCallbackMethod_ModelStreamInfer<
                                                                        Generated::
                                                                            Service>>>>>>>>>>>>>>>>>>>>;

class InferenceService final : public InferenceRpcs {
 public:
  explicit InferenceService(ServiceParts parts) : parts_(std::move(parts)) {}

  UnaryReactor* ServerLive(Context* context, const inference::ServerLiveRequest*,
                           inference::ServerLiveResponse* response) override {
    response->set_live(parts_.models.Alive());
    return Finish(*context, {});
  }

  UnaryReactor* ServerReady(Context* context, const inference::ServerReadyRequest*,
                            inference::ServerReadyResponse* response) override {
    response->set_ready(parts_.models.Ready());
    return Finish(*context, {});
  }

  UnaryReactor* ModelReady(Context* context, const inference::ModelReadyRequest* request,
                           inference::ModelReadyResponse* response) override {
    return Answer(*context, [&]() -> Status {
      const Result<InferModelPtr> model = parts_.models.Find(request->name(), request->version());
      response->set_ready(model.ok() && parts_.models.Ready(**model));
      return {};
    });
  }

  UnaryReactor* ServerMetadata(Context* context, const inference::ServerMetadataRequest*,
                               inference::ServerMetadataResponse* response) override {
    return Answer(*context, [&]() -> Status {
      response->set_name(std::string(kServerName));
      response->set_version(std::string(kServerVersion));
      const bool has_shared_memory = parts_.models.shared_memory().CheckAllowed().ok();
      for (const std::string_view extension : ServerExtensions(has_shared_memory)) {
        response->add_extensions(std::string(extension));
      }
      return {};
    });
  }

  UnaryReactor* ModelMetadata(Context* context, const inference::ModelMetadataRequest* request,
                              inference::ModelMetadataResponse* response) override {
    return Answer(*context, [&]() -> Status {
      TANDEM_ASSIGN_OR_RETURN(const InferModelPtr model,
                              parts_.models.Find(request->name(), request->version()));
      DescribeModel(model->config(), kModelVersion, *response);
      return {};
    });
  }

  UnaryReactor* ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                            inference::ModelConfigResponse* response) override {
    return Answer(*context, [&]() -> Status {
      TANDEM_ASSIGN_OR_RETURN(const InferModelPtr model,
                              parts_.models.Find(request->name(), request->version()));
      *response->mutable_config() = model->config();
      return {};
    });
  }

  UnaryReactor* ModelStatistics(Context* context, const inference::ModelStatisticsRequest* request,
                                inference::ModelStatisticsResponse* response) override {
    return Answer(*context, [&]() -> Status {
      TANDEM_ASSIGN_OR_RETURN(
          const std::vector<NamedStatistics> found,
          StatisticsOf(parts_.models, ModelName(request->name()), request->version()));
      for (const auto& [model, figures] : found) {
        DescribeStatistics(model, kModelVersion, figures, *response->add_model_stats());
      }
      return {};
    });
  }

  UnaryReactor* RepositoryIndex(Context* context, const inference::RepositoryIndexRequest* request,
                                inference::RepositoryIndexResponse* response) override {
    return Answer(*context, [&]() -> Status {
      for (const ModelEntry& entry : parts_.models.Index(request->ready())) {
        inference::RepositoryIndexResponse::ModelIndex& row = *response->add_models();
        row.set_name(entry.name);
        row.set_version(entry.version);
        row.set_state(std::string(ModelStateName(entry.state)));
        row.set_reason(entry.reason);
      }
      return {};
    });
  }

  UnaryReactor* RepositoryModelLoad(Context* context,
                                    const inference::RepositoryModelLoadRequest* request,
                                    inference::RepositoryModelLoadResponse*) override {
    return Control(*context, *request, LoadModel);
  }

  UnaryReactor* RepositoryModelUnload(Context* context,
                                      const inference::RepositoryModelUnloadRequest* request,
                                      inference::RepositoryModelUnloadResponse*) override {
    return Control(*context, *request, UnloadModel);
  }

  UnaryReactor* ModelInfer(Context* context, const ::grpc::ByteBuffer* request,
                           ::grpc::ByteBuffer* response) override {
    const std::string_view key = MetadataOf(*context, "authorization");
    if (!parts_.access.HasKey(key)) return Finish(*context, NoKey());
    return StartInfer(parts_.calls, *request, *response, parts_.access.CallerOf(key));
  }

  ::grpc::ServerBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer>* ModelStreamInfer(
      Context* context) override {
    const std::string_view key = MetadataOf(*context, "authorization");
    if (!parts_.access.HasKey(key)) return new RefusedStream(NoKey());
    const bool errors_end = MetadataOf(*context, "triton_grpc_error") == "true";
    return StartStreamInfer(parts_.calls, parts_.access.CallerOf(key), errors_end);
  }

  UnaryReactor* LogSettings(Context* context, const inference::LogSettingsRequest* request,
                            inference::LogSettingsResponse* response) override {
    return Answer(*context, [&]() -> Status {
      TANDEM_ASSIGN_OR_RETURN(const Parameters settings, ParametersOf(*request));
      TANDEM_RETURN_IF_ERROR(SetLogSettings(settings));
      for (const auto& [name, value] : kserve::LogSettings()) {
        auto& setting = (*response->mutable_settings())[std::string(name)];
        if (const bool* truth = std::get_if<bool>(&value)) setting.set_bool_param(*truth);
        if (const int64_t* number = std::get_if<int64_t>(&value)) {
          setting.set_uint32_param(static_cast<uint32_t>(*number));
        }
        if (const std::string* text = std::get_if<std::string>(&value)) {
          setting.set_string_param(*text);
        }
      }
      return {};
    });
  }

  UnaryReactor* TraceSetting(Context* context, const inference::TraceSettingRequest* request,
                             inference::TraceSettingResponse* response) override {
    return Answer(*context, [&]() -> Status {
      TraceSettings changes;
      for (const auto& [name, value] : request->settings()) {
        changes[name].assign(value.value().begin(), value.value().end());
      }
      TANDEM_ASSIGN_OR_RETURN(
          const TraceSettings settings,
          ChangeTraceSettings(parts_.models, ModelName(request->model_name()), {}, changes));
      for (const auto& [name, values] : settings) {
        auto& row = (*response->mutable_settings())[name];
        for (const std::string& value : values) row.add_value(value);
      }
      return {};
    });
  }

  UnaryReactor* SystemSharedMemoryStatus(
      Context* context, const inference::SystemSharedMemoryStatusRequest* request,
      inference::SystemSharedMemoryStatusResponse* response) override {
    return Answer(*context, [&]() -> Status {
      TANDEM_ASSIGN_OR_RETURN(const auto regions,
                              parts_.models.shared_memory().List(request->name()));
      for (const SharedMemoryInfo& region : regions) {
        auto& row = (*response->mutable_regions())[region.name];
        row.set_name(region.name);
        row.set_key(region.key);
        row.set_offset(region.offset);
        row.set_byte_size(region.byte_size);
      }
      return {};
    });
  }
  UnaryReactor* SystemSharedMemoryRegister(
      Context* context, const inference::SystemSharedMemoryRegisterRequest* request,
      inference::SystemSharedMemoryRegisterResponse*) override {
    return Answer(*context, [&] {
      return parts_.models.shared_memory().Register(
          {request->name(), request->key(), request->offset(), request->byte_size()});
    });
  }
  UnaryReactor* SystemSharedMemoryUnregister(
      Context* context, const inference::SystemSharedMemoryUnregisterRequest* request,
      inference::SystemSharedMemoryUnregisterResponse*) override {
    return Answer(*context, [&] {
      parts_.models.shared_memory().Unregister(request->name());
      return Status();
    });
  }
  UnaryReactor* CudaSharedMemoryStatus(Context* context,
                                       const inference::CudaSharedMemoryStatusRequest* request,
                                       inference::CudaSharedMemoryStatusResponse*) override {
    return Answer(*context, [&] { return ListCudaRegions(request->name()); });
  }
  UnaryReactor* CudaSharedMemoryRegister(Context* context,
                                         const inference::CudaSharedMemoryRegisterRequest*,
                                         inference::CudaSharedMemoryRegisterResponse*) override {
    return Answer(*context, NoCudaSharedMemory);
  }
  UnaryReactor* CudaSharedMemoryUnregister(
      Context* context, const inference::CudaSharedMemoryUnregisterRequest*,
      inference::CudaSharedMemoryUnregisterResponse*) override {
    return Answer(*context, [] { return Status(); });
  }

 private:
  static Status NoKey() {
    return {Code::kUnauthenticated,
            "missing or wrong API key; send the metadata \"authorization: Bearer KEY\""};
  }
  bool HasKey(const Context& context) const {
    return parts_.access.HasKey(MetadataOf(context, "authorization"));
  }

  // An answer that `fill` gives at once.
  template <typename Fill>
  UnaryReactor* Answer(Context& context, Fill&& fill) {
    return Finish(context, HasKey(context) ? fill() : NoKey());
  }

  // `control`: LoadModel or UnloadModel.
  template <typename Request>
  UnaryReactor* Control(Context& context, const Request& request, decltype(LoadModel)& control) {
    if (!HasKey(context)) return Finish(context, NoKey());
    const Result<Parameters> parameters = ParametersOf(request);
    if (!parameters.ok()) return Finish(context, parameters.status());
    UnaryReactor* reactor = context.DefaultReactor();
    control(parts_.models, request.model_name(), *parameters,
            [reactor](const Status& status) { reactor->Finish(ToGrpc(status)); });
    return reactor;
  }

  const ServiceParts parts_;
};

class HealthService final : public ::grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(const Repository& models) : models_(models) {}

  UnaryReactor* Check(Context* context, const ::grpc::health::v1::HealthCheckRequest* request,
                      ::grpc::health::v1::HealthCheckResponse* response) override {
    const std::string& service = request->service();
    if (!service.empty() && service != inference::GRPCInferenceService::service_full_name()) {
      return Finish(*context, NotFound(fmt::format("there is no service {}", Printable(service))));
    }
    response->set_status(models_.Ready() ? ::grpc::health::v1::HealthCheckResponse::SERVING
                                         : ::grpc::health::v1::HealthCheckResponse::NOT_SERVING);
    return Finish(*context, {});
  }

 private:
  const Repository& models_;
};

}  // namespace

std::unique_ptr<::grpc::Service> MakeInferenceService(ServiceParts parts) {
  return std::make_unique<InferenceService>(std::move(parts));
}

std::unique_ptr<::grpc::Service> MakeHealthService(const Repository& models) {
  return std::make_unique<HealthService>(models);
}

}  // namespace tandem::serve::kserve
