#include "checkpoint/trtllm/checkpoint.h"

#include <utility>

#include "base/file.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

fs::path RankPath(const fs::path& folder, int64_t rank) {
  return folder / ("rank" + std::to_string(rank) + ".safetensors");
}

class SafetensorsRank final : public RankFile {
 public:
  explicit SafetensorsRank(std::shared_ptr<const SafetensorsFile> file) : file_(std::move(file)) {}
  const fs::path& path() const override { return file_->path(); }
  Result<Tensor> Find(const std::string& name) override {
    const auto found = file_->tensors().find(name);
    if (found != file_->tensors().end()) return found->second;
    return NotFound(path().string() + ": tensor \"" + name + "\" is missing");
  }

 private:
  std::shared_ptr<const SafetensorsFile> file_;
};

}  // namespace

Result<std::unique_ptr<ShardedSource>> OpenCheckpoint(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const auto json = JsonFields::Parse(text);
  if (!json.ok()) return json.status().Annotate(path.string());
  auto config = ReadCheckpointConfig(*json);
  if (!config.ok()) return config.status().Annotate(path.string());
  std::vector<std::unique_ptr<RankFile>> ranks;
  for (int64_t rank = 0; rank < config->sharding.tp_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(RankPath(folder, rank)));
    ranks.push_back(std::make_unique<SafetensorsRank>(std::move(file)));
  }
  return ShardedSource::Create(std::move(config->spec), config->sharding, std::move(ranks),
                               Int4Pairs::kOfTwoRows);
}

Status WriteShards(WeightSource& source, const Sharding& sharding, const ShardSink& sink,
                   const WriteProgress& progress) {
  TANDEM_RETURN_IF_ERROR(CheckSharding(source.spec(), sharding));
  const std::vector<FusedTensor> tensors = FusedTensors(source.spec());
  for (const FusedTensor& tensor : tensors) {
    TANDEM_RETURN_IF_ERROR(CheckFusedSchemes(source.spec(), tensor));
  }
  const auto total = static_cast<double>(tensors.size()) * static_cast<double>(sharding.tp_size);
  ScratchBuffers scratch;
  double done = 0;
  for (int64_t rank = 0; rank < sharding.tp_size; ++rank) {
    TANDEM_RETURN_IF_ERROR(sink.begin_rank(rank, tensors));
    for (const FusedTensor& info : tensors) {
      TANDEM_ASSIGN_OR_RETURN(const Tensor tensor,
                              MakeShard(source, sharding, info, rank, scratch));
      TANDEM_RETURN_IF_ERROR(sink.write(info, tensor));
      scratch.Clear();
      source.Release();
      if (progress) progress(++done / total);
    }
    TANDEM_RETURN_IF_ERROR(sink.end_rank());
  }
  return source.Finish();
}

Status WriteCheckpoint(WeightSource& source, const Sharding& sharding, const fs::path& folder,
                       const WriteProgress& progress) {
  const ModelSpec& spec = source.spec();
  std::unique_ptr<SafetensorsWriter> writer;
  ShardSink sink;
  sink.begin_rank = [&](int64_t rank, const std::vector<FusedTensor>& tensors) -> Status {
    std::vector<TensorInfo> infos;
    for (const FusedTensor& tensor : tensors) {
      infos.push_back({tensor.name, FusedDType(spec, tensor),
                       PairedShape(spec, sharding, tensor, Int4Pairs::kOfTwoRows)});
    }
    TANDEM_ASSIGN_OR_RETURN(writer,
                            SafetensorsWriter::Create(RankPath(folder, rank), std::move(infos)));
    return {};
  };
  sink.write = [&](const FusedTensor& info, const Tensor& tensor) -> Status {
    if (!HoldsInt4(spec, info)) return writer->Append(tensor);
    const Shape shape{tensor.dim(0) / 2, tensor.dim(1) * 2};
    const Buffer paired = Buffer::OnHost(static_cast<size_t>(shape.NumElements()));
    if (paired.data() == nullptr) return ResourceExhausted("no memory for a tensor of weights");
    PairRows(tensor, paired.View(DType::kU8, shape));
    return writer->Append(paired.View(DType::kU8, shape));
  };
  sink.end_rank = [&] { return writer->Commit(); };
  TANDEM_RETURN_IF_ERROR(WriteShards(source, sharding, sink, progress));
  return WriteFileAtomically(folder / "config.json", CheckpointConfigToJson({spec, sharding}));
}

}  // namespace tandem
