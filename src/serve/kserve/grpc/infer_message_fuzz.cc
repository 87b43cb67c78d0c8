// Fuzz target: any bytes as a ModelInferRequest, and as its text form. What is accepted has tensors
// whose data can be read, and can be sent back.
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <grpc_service.pb.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "base/check.h"
#include "serve/kserve/grpc/translate.h"

namespace {

using namespace tandem::serve::kserve;

void Translate(const inference::ModelInferRequest& message) {
  const tandem::Result<ReceivedRequest> received = FromMessage(message);
  if (!received.ok()) {
    TANDEM_CHECK(GrpcCodeOf(received.status()) != 0, "an error that gRPC takes for none");
    return;
  }
  InferResponse response;
  std::set<size_t> shared;
  for (const SharedMemoryInput& input : received->request.shared_inputs) shared.insert(input.index);
  for (size_t i = 0; i < received->request.inputs.size(); ++i) {
    const Tensor& tensor = received->request.inputs[i];
    if (shared.contains(i)) {
      TANDEM_CHECK(tensor.data.empty(), "data beside shared memory");
      continue;
    }
    TANDEM_CHECK(CheckData(tensor).ok(), "data that does not fit the shape");
    const auto elements = static_cast<size_t>(*NumElements(tensor.shape));
    const size_t readable = Strings(tensor).size() + Integers(tensor).size() +
                            Floats(tensor).size() + Bools(tensor).size();
    TANDEM_CHECK(readable == elements, "elements that cannot be read");
    response.outputs.push_back(tensor);
  }
  response.parameters = received->request.parameters;
  inference::ModelInferResponse answer;
  ToMessage(response, answer);
  TANDEM_CHECK(answer.raw_output_contents_size() == answer.outputs_size(), "outputs without bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  inference::ModelInferRequest message;
  if (message.ParseFromArray(data, static_cast<int>(size))) Translate(message);
  google::protobuf::TextFormat::Parser parser;
  class Silent final : public google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string&) override {}
  } silent;
  parser.RecordErrorsTo(&silent);
  parser.SetRecursionLimit(16);
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (parser.ParseFromString(text, &message)) Translate(message);
  return 0;
}
