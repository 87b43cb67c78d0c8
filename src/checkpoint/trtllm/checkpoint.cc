#include "checkpoint/trtllm/checkpoint.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/stored/stored_schemes.h"
#include "checkpoint/trtllm/checkpoint_rank.h"
#include "checkpoint/trtllm/int4_pairs.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Inputs = QuantScheme::Inputs;

fs::path RankPath(const fs::path& folder, int64_t rank) {
  return folder / ("rank" + std::to_string(rank) + ".safetensors");
}

// TensorRT-LLM splits weights before it rounds them: where their columns are split, each rank has
// scales of its own for the same rows, which are those of a group of columns.
bool HasGroupOfEachRank(std::span<const std::unique_ptr<CheckpointRank>> ranks,
                        const FusedTensor& weight, const QuantScheme& scheme) {
  const bool integers = scheme.element == QuantScheme::Element::kInt8 ||
                        scheme.element == QuantScheme::Element::kInt4;
  const bool is_read = scheme.element == QuantScheme::Element::kFp8E4M3 ||
                       (integers && scheme.inputs == Inputs::kPlain);
  return is_read && scheme.block_columns == 0 && !std::ranges::all_of(ranks, [&](const auto& rank) {
           return rank->HasScalesOf(*ranks.front(), weight);
         });
}

// What is stored decides: layers may be left as they are, and not every weight has input factors or
// zero points.
Status SettleSchemes(const std::vector<std::unique_ptr<CheckpointRank>>& files,
                     const Sharding& sharding, ModelSpec& spec) {
  ModelSpec plain = spec;
  plain.quantization = {};
  std::vector<SchemeException> schemes;
  for (const WeightId& id : Products(spec)) {
    const FusedTensor weight = FusedTensorOf(plain, id, sharding);
    const std::span ranks =
        std::span(files).subspan(static_cast<size_t>(weight.stage * sharding.tp_size),
                                 static_cast<size_t>(sharding.tp_size));
    TANDEM_ASSIGN_OR_RETURN(
        QuantScheme scheme,
        ranks.front()->SchemeOf(weight, spec.quantization, FusedShape(plain, sharding, weight)));
    if (SplitOf(plain, sharding, id) == Split::kCols && HasGroupOfEachRank(ranks, weight, scheme)) {
      scheme.block_columns = PartShape(plain, sharding, id)[1];
    }
    schemes.push_back({id.role, id.layer, scheme});
  }
  const QuantScheme described = spec.quantization;
  const bool any = std::ranges::any_of(
      schemes, [](const SchemeException& weight) { return !weight.scheme.is_plain(); });
  const bool is_rounded_by_reader =
      described.block_columns == 0 && described.inputs == Inputs::kPlain;
  if (!any && !is_rounded_by_reader) return {};  // refused, by name, when the weights are checked
  if (!any) {
    LogWarning(
        "{}: config.json describes {} weights, but they are not rounded yet and are used as they "
        "are; --weights rounds them while they are loaded",
        files.front()->path().parent_path().string(), DescribeScheme(described));
  }
  return SetStoredSchemes(schemes, spec);
}

// One converter wrote all weights, for one kind of GPU.
Status SettleKernelOrder(const fs::path& folder, std::span<CheckpointRank* const> ranks) {
  BitCounts counts = {};
  for (const CheckpointRank* rank : ranks) rank->CountBitsOfKernels(counts);
  if (counts == BitCounts{}) return {};
  const std::optional<KernelOrder> order = KernelOrderOf(counts);
  if (!order) {
    return Unimplemented(
        folder.string() +
        ": the weights are in the order of TensorRT-LLM's kernels, but their values do not tell "
        "whether in that of sm_90 or of GPUs before it; convert the original model with `tandem "
        "convert` instead");
  }
  for (CheckpointRank* rank : ranks) rank->SetKernelOrder(*order);
  return {};
}

}  // namespace

Result<std::unique_ptr<ShardedSource>> OpenCheckpoint(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const auto json = JsonFields::Parse(text);
  if (!json.ok()) return json.status().Annotate(path.string());
  auto config = ReadCheckpointConfig(*json);
  if (!config.ok()) return config.status().Annotate(path.string());
  std::vector<std::unique_ptr<CheckpointRank>> ranks;
  for (int64_t rank = 0; rank < config->sharding.num_files(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto file, CheckpointRank::Open(RankPath(folder, rank)));
    ranks.push_back(std::move(file));
  }
  if (!config->describes_each_weight && !config->spec.quantization.is_plain()) {
    TANDEM_RETURN_IF_ERROR(SettleSchemes(ranks, config->sharding, config->spec));
  }
  std::vector<std::unique_ptr<RankFile>> files;
  std::vector<CheckpointRank*> opened;
  for (auto& rank : ranks) {
    opened.push_back(rank.get());
    files.push_back(std::move(rank));
  }
  TANDEM_ASSIGN_OR_RETURN(auto source, ShardedSource::Create(std::move(config->spec),
                                                             config->sharding, std::move(files)));
  TANDEM_RETURN_IF_ERROR(SettleKernelOrder(folder, opened));
  return source;
}

Status WriteShards(WeightSource& source, const Sharding& sharding, const ShardSink& sink,
                   const WriteProgress& progress) {
  TANDEM_RETURN_IF_ERROR(CheckSharding(source.spec(), sharding));
  const std::vector<FusedTensor> tensors = FusedTensors(source.spec(), sharding);
  for (const FusedTensor& tensor : tensors) {
    TANDEM_RETURN_IF_ERROR(CheckFusedSchemes(source.spec(), tensor));
  }
  const auto total = static_cast<double>(tensors.size()) * static_cast<double>(sharding.tp_size);
  ScratchBuffers scratch;
  double done = 0;
  for (int64_t file = 0; file < sharding.num_files(); ++file) {
    std::vector<FusedTensor> in_file = tensors;
    std::erase_if(in_file, [&](const FusedTensor& tensor) {
      return tensor.stage != file / sharding.tp_size;
    });
    TANDEM_RETURN_IF_ERROR(sink.begin_file(file, in_file));
    for (const FusedTensor& info : in_file) {
      TANDEM_ASSIGN_OR_RETURN(const Tensor tensor,
                              MakeShard(source, sharding, info, file % sharding.tp_size, scratch));
      TANDEM_RETURN_IF_ERROR(sink.write(info, tensor));
      scratch.Clear();
      source.Release();
      if (progress) TANDEM_RETURN_IF_ERROR(progress(++done / total));
    }
    TANDEM_RETURN_IF_ERROR(sink.end_file());
  }
  return source.Finish();
}

Status WriteCheckpoint(WeightSource& source, const Sharding& sharding, const fs::path& folder,
                       const WriteProgress& progress) {
  const ModelSpec& spec = source.spec();
  std::unique_ptr<SafetensorsWriter> writer;
  ShardSink sink;
  sink.begin_file = [&](int64_t file, const std::vector<FusedTensor>& tensors) -> Status {
    std::vector<TensorInfo> infos;
    for (const FusedTensor& tensor : tensors) {
      const Shape shape = FusedShape(spec, sharding, tensor);
      const TensorInfo info{tensor.name, FusedDType(spec, tensor), shape};
      infos.push_back(HoldsInt4(spec, tensor)
                          ? TensorInfo{tensor.name, DType::kI8, {shape[0] / 2, shape[1] * 2}}
                          : info);
    }
    TANDEM_ASSIGN_OR_RETURN(writer,
                            SafetensorsWriter::Create(RankPath(folder, file), std::move(infos)));
    return {};
  };
  sink.write = [&](const FusedTensor& info, const Tensor& tensor) -> Status {
    if (!HoldsInt4(spec, info)) return writer->Append(tensor);
    const Shape shape{tensor.dim(0) / 2, tensor.dim(1) * 2};
    const Buffer paired = Buffer::OnHost(static_cast<size_t>(shape.NumElements()));
    if (paired.data() == nullptr) return ResourceExhausted("no memory for a tensor of weights");
    PairRows(tensor, paired.View(DType::kI8, shape));
    return writer->Append(paired.View(DType::kI8, shape));
  };
  sink.end_file = [&] { return writer->Commit(); };
  TANDEM_RETURN_IF_ERROR(WriteShards(source, sharding, sink, progress));
  return WriteFileAtomically(folder / "config.json", CheckpointConfigToJson({spec, sharding}));
}

}  // namespace tandem
