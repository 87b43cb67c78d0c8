#include "model/weight_roles.h"

#include <array>

namespace tandem {
namespace {

int64_t Vocabulary(const ModelSpec& spec, int64_t /*layer*/) { return spec.vocab_rows(); }
int64_t Hidden(const ModelSpec& spec, int64_t /*layer*/) { return spec.hidden_size; }
int64_t QueryRows(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).attention.query_rows();
}
int64_t KvRows(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).attention.kv_rows();
}
int64_t OutColumns(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).attention.out_columns();
}
int64_t QueryRank(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).attention.latent.query_rank;
}
int64_t QueryColumns(const ModelSpec& spec, int64_t layer) {
  return QueryRank(spec, layer) > 0 ? QueryRank(spec, layer) : spec.hidden_size;
}
int64_t LatentRank(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).attention.latent.rank;
}
int64_t LatentKeyRows(const ModelSpec& spec, int64_t layer) {
  const AttentionSpec& attention = spec.layer(layer).attention;
  return attention.num_heads * attention.latent.key_dim;
}
int64_t Neurons(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).mlp.intermediate_size;
}

int64_t Positions(const ModelSpec& spec, int64_t /*layer*/) { return spec.position_rows; }
// Of a norm of queries or keys.
int64_t NormedRows(HeadNorm norm, int64_t head_dim, int64_t rows) {
  return norm == HeadNorm::kHead ? head_dim : rows;
}
int64_t QueryNormRows(const ModelSpec& spec, int64_t layer) {
  const AttentionSpec& attention = spec.layer(layer).attention;
  return NormedRows(attention.head_norm, attention.head_dim, attention.query_rows());
}
int64_t KeyNormRows(const ModelSpec& spec, int64_t layer) {
  const AttentionSpec& attention = spec.layer(layer).attention;
  return NormedRows(attention.head_norm, attention.head_dim, attention.kv_rows());
}

bool HasLatents(const ModelSpec& spec, int64_t layer) { return LatentRank(spec, layer) > 0; }
bool HasKeys(const ModelSpec& spec, int64_t layer) { return !HasLatents(spec, layer); }
bool HasQueryDown(const ModelSpec& spec, int64_t layer) { return QueryRank(spec, layer) > 0; }
int64_t SecondPositions(const ModelSpec& spec, int64_t /*layer*/) {
  return spec.second_position_rows;
}
bool HasPositions(const ModelSpec& spec, int64_t /*layer*/) { return spec.position_rows > 0; }
bool HasSecondPositions(const ModelSpec& spec, int64_t /*layer*/) {
  return spec.second_position_rows > 0;
}
bool HasEmbeddingNorm(const ModelSpec& spec, int64_t /*layer*/) { return spec.embedding_norm; }
bool HasHeadNorms(const ModelSpec& spec, int64_t layer) {
  const HeadNorm norm = spec.layer(layer).attention.head_norm;
  return norm != HeadNorm::kNone && norm != HeadNorm::kUnweighted;
}
bool HasSinks(const ModelSpec& spec, int64_t layer) { return spec.layer(layer).attention.sinks; }
int64_t Heads(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).attention.num_heads;
}
bool IsSandwich(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).residual == Residual::kSandwich;
}
bool HasPostNorm(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).residual != Residual::kParallel;
}
int64_t NumExperts(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).moe.num_experts;
}
int64_t ExpertNeurons(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).moe.expert.intermediate_size;
}
int64_t One(const ModelSpec& /*spec*/, int64_t /*layer*/) { return 1; }
bool HasExperts(const ModelSpec& spec, int64_t layer) { return spec.has_experts(layer); }
bool HasCorrection(const ModelSpec& spec, int64_t layer) {
  return HasExperts(spec, layer) && spec.layer(layer).moe.correction;
}
bool HasSharedGate(const ModelSpec& spec, int64_t layer) {
  return HasExperts(spec, layer) && spec.layer(layer).moe.shared_gate;
}
bool HasGatedExperts(const ModelSpec& spec, int64_t layer) {
  return HasExperts(spec, layer) && spec.layer(layer).moe.expert.gated;
}
bool RouterBias(const ModelSpec& spec, int64_t layer) { return spec.layer(layer).moe.router_bias; }
bool ExpertBias(const ModelSpec& spec, int64_t layer) { return spec.layer(layer).moe.expert.bias; }
bool HasMlp(const ModelSpec& spec, int64_t layer) {
  return spec.layer(layer).mlp.intermediate_size > 0;
}
bool IsGated(const ModelSpec& spec, int64_t layer) {
  return HasMlp(spec, layer) && spec.layer(layer).mlp.gated;
}
bool NormBias(const ModelSpec& spec, int64_t /*layer*/) { return spec.norm.bias; }
bool HeadBias(const ModelSpec& spec, int64_t /*layer*/) { return spec.head_bias; }
bool QkvBias(const ModelSpec& spec, int64_t layer) { return spec.layer(layer).attention.qkv_bias; }
bool QueryBias(const ModelSpec& spec, int64_t layer) {
  return QkvBias(spec, layer) && HasKeys(spec, layer);
}
bool OutBias(const ModelSpec& spec, int64_t layer) { return spec.layer(layer).attention.out_bias; }
bool MlpBias(const ModelSpec& spec, int64_t layer) { return spec.layer(layer).mlp.bias; }
bool OwnHead(const ModelSpec& spec, int64_t /*layer*/) { return !spec.tied_head; }

constexpr std::array kRows = {
    WeightRow{.role = WeightRole::kEmbedding,
              .per_layer = false,
              .hf_name = "model.embed_tokens",
              .trtllm_name = "transformer.vocab_embedding",
              .rows = Vocabulary,
              .columns = Hidden,
              .shard = ShardRule::kEmbedding,
              .dummy = DummyValues::kEmbedding},
    WeightRow{.role = WeightRole::kPositions,
              .per_layer = false,
              .hf_name = "model.embed_positions",
              .trtllm_name = "transformer.position_embedding",
              .rows = Positions,
              .columns = Hidden,
              .present = HasPositions,
              .dummy = DummyValues::kZeros},
    WeightRow{.role = WeightRole::kSecondPositions,
              .per_layer = false,
              .hf_name = "model.embed_second_positions",
              .trtllm_name = "transformer.second_position_embedding",
              .rows = SecondPositions,
              .columns = Hidden,
              .present = HasSecondPositions,
              .dummy = DummyValues::kZeros},
    WeightRow{.role = WeightRole::kEmbeddingNorm,
              .per_layer = false,
              .hf_name = "model.embed_layernorm",
              .trtllm_name = "transformer.ln_embed",
              .rows = Hidden,
              .present = HasEmbeddingNorm,
              .bias = NormBias,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kInputNorm,
              .hf_name = "input_layernorm",
              .trtllm_name = "input_layernorm",
              .rows = Hidden,
              .bias = NormBias,
              .dummy = DummyValues::kLayerNorm},
    WeightRow{.role = WeightRole::kQueryDown,
              .hf_name = "self_attn.q_a_proj",
              .trtllm_name = "attention.q_a_proj",
              .rows = QueryRank,
              .columns = Hidden,
              .present = HasQueryDown,
              .bias = QkvBias,
              .pack = WeightPack::kQueryDown,
              .quantizable = true},
    WeightRow{.role = WeightRole::kQueryDownNorm,
              .hf_name = "self_attn.q_a_layernorm",
              .trtllm_name = "attention.q_a_layernorm",
              .rows = QueryRank,
              .present = HasQueryDown,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kQuery,
              .hf_name = "self_attn.q_proj",
              .trtllm_name = "attention.qkv",
              .rows = QueryRows,
              .columns = QueryColumns,
              .bias = QueryBias,
              .pack = WeightPack::kQkv,
              .input = InputGroup::kAttention,
              .absorber = WeightRole::kInputNorm,
              .shard = ShardRule::kHeadRows,
              .quantizable = true,
              .dummy = DummyValues::kScores},
    WeightRow{.role = WeightRole::kKey,
              .hf_name = "self_attn.k_proj",
              .trtllm_name = "attention.qkv",
              .rows = KvRows,
              .columns = Hidden,
              .present = HasKeys,
              .bias = QkvBias,
              .pack = WeightPack::kQkv,
              .input = InputGroup::kAttention,
              .absorber = WeightRole::kInputNorm,
              .shard = ShardRule::kKvHeadRows,
              .quantizable = true,
              .cache_scale = ".k_scale"},
    WeightRow{.role = WeightRole::kValue,
              .hf_name = "self_attn.v_proj",
              .trtllm_name = "attention.qkv",
              .rows = KvRows,
              .columns = Hidden,
              .present = HasKeys,
              .bias = QkvBias,
              .pack = WeightPack::kQkv,
              .input = InputGroup::kAttention,
              .absorber = WeightRole::kInputNorm,
              .shard = ShardRule::kKvHeadRows,
              .quantizable = true,
              .cache_scale = ".v_scale"},
    WeightRow{.role = WeightRole::kLatent,
              .hf_name = "self_attn.kv_a_proj_with_mqa",
              .trtllm_name = "attention.kv_a_proj",
              .rows = KvRows,
              .columns = Hidden,
              .present = HasLatents,
              .bias = QkvBias,
              .pack = WeightPack::kLatent,
              .quantizable = true},
    WeightRow{.role = WeightRole::kLatentNorm,
              .hf_name = "self_attn.kv_a_layernorm",
              .trtllm_name = "attention.kv_a_layernorm",
              .rows = LatentRank,
              .present = HasLatents,
              .dummy = DummyValues::kLayerNorm},
    WeightRow{.role = WeightRole::kLatentKey,
              .hf_name = "self_attn.k_b_proj",
              .trtllm_name = "attention.k_b_proj",
              .rows = LatentKeyRows,
              .columns = LatentRank,
              .present = HasLatents,
              .pack = WeightPack::kLatentKey,
              .shard = ShardRule::kHeadRows,
              .quantizable = true,
              .by_head = HeadProducts::kTransposed},
    WeightRow{.role = WeightRole::kLatentValue,
              .hf_name = "self_attn.v_b_proj",
              .trtllm_name = "attention.v_b_proj",
              .rows = OutColumns,
              .columns = LatentRank,
              .present = HasLatents,
              .pack = WeightPack::kLatentValue,
              .shard = ShardRule::kHeadRows,
              .quantizable = true,
              .by_head = HeadProducts::kRows},
    WeightRow{.role = WeightRole::kQueryNorm,
              .hf_name = "self_attn.q_norm",
              .trtllm_name = "attention.q_layernorm",
              .rows = QueryNormRows,
              .present = HasHeadNorms,
              .shard = ShardRule::kHeadRows,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kKeyNorm,
              .hf_name = "self_attn.k_norm",
              .trtllm_name = "attention.k_layernorm",
              .rows = KeyNormRows,
              .present = HasHeadNorms,
              .shard = ShardRule::kKvHeadRows,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kSinks,
              .hf_name = "self_attn.sinks",
              .trtllm_name = "attention.sinks",
              .rows = Heads,
              .present = HasSinks,
              .shard = ShardRule::kHeadRows,
              .dummy = DummyValues::kZeros},
    WeightRow{.role = WeightRole::kAttentionOut,
              .hf_name = "self_attn.o_proj",
              .trtllm_name = "attention.dense",
              .rows = Hidden,
              .columns = OutColumns,
              .bias = OutBias,
              .pack = WeightPack::kAttentionOut,
              .input = InputGroup::kAttentionOut,
              .absorber = WeightRole::kValue,
              .shard = ShardRule::kHeadColumns,
              .quantizable = true,
              .dummy = DummyValues::kToResidual},
    WeightRow{.role = WeightRole::kAttentionOutNorm,
              .hf_name = "attention_out_layernorm",
              .trtllm_name = "attention_out_layernorm",
              .rows = Hidden,
              .present = IsSandwich,
              .bias = NormBias,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kPostNorm,
              .hf_name = "post_attention_layernorm",
              .trtllm_name = "post_layernorm",
              .rows = Hidden,
              .present = HasPostNorm,
              .bias = NormBias,
              .dummy = DummyValues::kLayerNorm},
    WeightRow{.role = WeightRole::kRouter,
              .hf_name = "mlp.gate",
              .trtllm_name = "mlp.router",
              .rows = NumExperts,
              .columns = Hidden,
              .present = HasExperts,
              .bias = RouterBias,
              .pack = WeightPack::kRouter,
              .input = InputGroup::kMlp},
    WeightRow{.role = WeightRole::kRouterCorrection,
              .hf_name = "mlp.gate.e_score_correction_bias",
              .trtllm_name = "mlp.router_correction",
              .rows = NumExperts,
              .present = HasCorrection,
              .keeps_f32 = true,
              .dummy = DummyValues::kZeros},
    WeightRow{.role = WeightRole::kExpertGate,
              .per_expert = true,
              .hf_name = "mlp.experts.{}.gate_proj",
              .trtllm_name = "mlp.experts.{}.fc",
              .rows = ExpertNeurons,
              .columns = Hidden,
              .present = HasGatedExperts,
              .bias = ExpertBias,
              .pack = WeightPack::kExpertGateUp,
              .input = InputGroup::kMlp,
              .absorber = WeightRole::kPostNorm,
              .shard = ShardRule::kNeuronRows,
              .quantizable = true},
    WeightRow{.role = WeightRole::kExpertUp,
              .per_expert = true,
              .hf_name = "mlp.experts.{}.up_proj",
              .trtllm_name = "mlp.experts.{}.gate",
              .rows = ExpertNeurons,
              .columns = Hidden,
              .present = HasExperts,
              .bias = ExpertBias,
              .pack = WeightPack::kExpertGateUp,
              .input = InputGroup::kMlp,
              .absorber = WeightRole::kPostNorm,
              .shard = ShardRule::kNeuronRows,
              .quantizable = true},
    WeightRow{.role = WeightRole::kExpertDown,
              .per_expert = true,
              .hf_name = "mlp.experts.{}.down_proj",
              .trtllm_name = "mlp.experts.{}.proj",
              .rows = Hidden,
              .columns = ExpertNeurons,
              .present = HasExperts,
              .bias = ExpertBias,
              .pack = WeightPack::kExpertDown,
              .input = InputGroup::kExpertOut,
              .absorber = WeightRole::kExpertUp,
              .shard = ShardRule::kNeuronColumns,
              .quantizable = true,
              .dummy = DummyValues::kToResidual},
    WeightRow{.role = WeightRole::kSharedGate,
              .hf_name = "mlp.shared_expert_gate",
              .trtllm_name = "mlp.shared_gate",
              .rows = One,
              .columns = Hidden,
              .present = HasSharedGate,
              .pack = WeightPack::kSharedGate,
              .input = InputGroup::kMlp},
    WeightRow{.role = WeightRole::kGate,
              .hf_name = "mlp.gate_proj",
              .trtllm_name = "mlp.fc",
              .rows = Neurons,
              .columns = Hidden,
              .present = IsGated,
              .bias = MlpBias,
              .pack = WeightPack::kGateUp,
              .input = InputGroup::kMlp,
              .absorber = WeightRole::kPostNorm,
              .shard = ShardRule::kNeuronRows,
              .quantizable = true},
    WeightRow{.role = WeightRole::kUp,
              .hf_name = "mlp.up_proj",
              .trtllm_name = "mlp.gate",
              .rows = Neurons,
              .columns = Hidden,
              .present = HasMlp,
              .bias = MlpBias,
              .pack = WeightPack::kGateUp,
              .input = InputGroup::kMlp,
              .absorber = WeightRole::kPostNorm,
              .shard = ShardRule::kNeuronRows,
              .quantizable = true},
    WeightRow{.role = WeightRole::kDown,
              .hf_name = "mlp.down_proj",
              .trtllm_name = "mlp.proj",
              .rows = Hidden,
              .columns = Neurons,
              .present = HasMlp,
              .bias = MlpBias,
              .pack = WeightPack::kDown,
              .input = InputGroup::kMlpOut,
              .absorber = WeightRole::kUp,
              .shard = ShardRule::kNeuronColumns,
              .quantizable = true,
              .dummy = DummyValues::kToResidual},
    WeightRow{.role = WeightRole::kMlpOutNorm,
              .hf_name = "mlp_out_layernorm",
              .trtllm_name = "mlp_out_layernorm",
              .rows = Hidden,
              .present = IsSandwich,
              .bias = NormBias,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kFinalNorm,
              .per_layer = false,
              .hf_name = "model.norm",
              .trtllm_name = "transformer.ln_f",
              .rows = Hidden,
              .bias = NormBias,
              .dummy = DummyValues::kOnes},
    WeightRow{.role = WeightRole::kHead,
              .per_layer = false,
              .hf_name = "lm_head",
              .trtllm_name = "lm_head",
              .rows = Vocabulary,
              .columns = Hidden,
              .present = OwnHead,
              .bias = HeadBias,
              .pack = WeightPack::kHead,
              .shard = ShardRule::kVocabularyRows,
              .dummy = DummyValues::kHead},
};

// RowOf indexes by role, and StoredWeights lists the layers where their first row stands.
constexpr bool IsInOrder() {
  int runs = 0;
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].role != static_cast<WeightRole>(i)) return false;
    if (kRows[i].per_layer && (i == 0 || !kRows[i - 1].per_layer)) ++runs;
  }
  return runs == 1 && kRows.size() == static_cast<size_t>(WeightRole::kCount);
}
static_assert(IsInOrder());

bool IsPresent(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  if (IsOfFirstStage(row.role) && !spec.place.is_first_stage()) return false;
  if (IsOfLastStage(row.role) && !spec.place.is_last_stage()) return false;
  return row.present == nullptr || row.present(spec, layer);
}

void AddParts(const ModelSpec& spec, WeightRole role, int64_t layer, std::vector<WeightId>& out) {
  const std::vector<WeightPart> parts = WeightParts(spec, role, layer);
  if (parts.empty()) return;
  for (int64_t expert = 0; expert < NumExpertsOf(spec, role, layer); ++expert) {
    for (const WeightPart part : parts) out.push_back({role, layer, part, expert});
  }
}

void AddLayers(const ModelSpec& spec, std::vector<WeightId>& out) {
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    for (const WeightRow& row : kRows) {
      if (row.per_layer) AddParts(spec, row.role, layer, out);
    }
  }
}

}  // namespace

std::span<const WeightRow> WeightRows() { return kRows; }

const WeightRow& RowOf(WeightRole role) { return kRows[static_cast<size_t>(role)]; }

bool IsOfFirstStage(WeightRole role) {
  return !RowOf(role).per_layer && role < WeightRole::kInputNorm;
}
bool IsOfLastStage(WeightRole role) {
  return !RowOf(role).per_layer && role > WeightRole::kInputNorm;
}

int64_t NumExpertsOf(const ModelSpec& spec, WeightRole role, int64_t layer) {
  return RowOf(role).per_expert ? spec.layer(layer).moe.experts_here() : 1;
}

std::string WithNumber(std::string_view name, int64_t number) {
  std::string numbered(name);
  const size_t place = numbered.find("{}");
  if (place != std::string::npos) numbered.replace(place, 2, std::to_string(number));
  return numbered;
}

std::vector<WeightId> StoredWeights(const ModelSpec& spec) {
  std::vector<WeightId> ids;
  bool layers_done = false;
  for (const WeightRow& row : kRows) {
    if (!row.per_layer) {
      AddParts(spec, row.role, 0, ids);
    } else if (!layers_done) {
      AddLayers(spec, ids);
      layers_done = true;
    }
  }
  return ids;
}

WeightId StoredId(const ModelSpec& spec, const WeightId& id) {
  const bool tied = id.role == WeightRole::kHead && spec.tied_head;
  return tied ? WeightId{WeightRole::kEmbedding, id.layer, id.part} : id;
}

Shape WeightShape(const ModelSpec& spec, const WeightId& id) {
  const WeightRow& row = RowOf(id.role);
  const QuantScheme scheme = SchemeOf(spec, id.role, id.layer);
  switch (RowOf(id.part).extent) {
    case WeightPartRow::Extent::kElements:
      if (row.columns == nullptr) break;
      return {row.rows(spec, id.layer),
              WeightFormat{spec.dtype, scheme}.row_length(row.columns(spec, id.layer))};
    case WeightPartRow::Extent::kBlocks:
      if (scheme.block_rows == 1 && scheme.block_columns == 0) break;
      return {scheme.row_blocks(row.rows(spec, id.layer)),
              scheme.column_blocks(row.columns(spec, id.layer))};
    case WeightPartRow::Extent::kColumns:
      return {row.columns(spec, id.layer)};
    case WeightPartRow::Extent::kRows:
      break;
    case WeightPartRow::Extent::kHeads:
      return {spec.layer(id.layer).attention.num_kv_heads};
    case WeightPartRow::Extent::kOne:
      return {1};
  }
  return {row.rows(spec, id.layer)};
}

DType WeightDType(const ModelSpec& spec, const WeightId& id) {
  if (RowOf(id.role).keeps_f32) return DType::kF32;
  const DType element = WeightFormat{spec.dtype, SchemeOf(spec, id.role, id.layer)}.element();
  switch (RowOf(id.part).values) {
    case WeightPartRow::Values::kStored:
    case WeightPartRow::Values::kZeros:
      return element;
    case WeightPartRow::Values::kPlain:
      return spec.dtype;
    case WeightPartRow::Values::kFactors:
      return DType::kF32;
    case WeightPartRow::Values::kIndices:
      return DType::kI32;
  }
  return spec.dtype;
}

std::vector<WeightPart> WeightParts(const ModelSpec& spec, WeightRole role, int64_t layer) {
  const WeightRow& row = RowOf(role);
  std::vector<WeightPart> parts;
  if (!IsPresent(spec, row, layer)) return parts;
  for (const WeightPartRow& part : WeightPartRows()) {
    if (part.present(spec, row, layer)) parts.push_back(part.part);
  }
  return parts;
}

bool HasBias(const ModelSpec& spec, WeightRole role, int64_t layer) {
  return RowOf(WeightPart::kBias).present(spec, RowOf(role), layer);
}

QuantScheme SchemeOf(const ModelSpec& spec, WeightRole role, int64_t layer) {
  for (const SchemeException& exception : spec.exceptions) {
    if (exception.role == role && exception.layer == layer) return exception.scheme;
  }
  return RowOf(role).quantizable ? spec.quantization : QuantScheme{};
}

std::vector<WeightRole> RolesOf(const ModelSpec& spec, WeightPack pack, int64_t layer) {
  if (pack == WeightPack::kHead && spec.tied_head) return {WeightRole::kEmbedding};
  std::vector<WeightRole> roles;
  for (const WeightRow& row : kRows) {
    if (row.pack == pack && IsPresent(spec, row, layer)) roles.push_back(row.role);
  }
  return roles;
}

namespace {

int64_t BytesOf(const ModelSpec& spec, const WeightId& id) {
  return WeightShape(spec, id).NumElements() * static_cast<int64_t>(SizeOf(WeightDType(spec, id)));
}

// Whether a row of x may be multiplied with it: of experts, those of as many as a row chooses.
bool IsOfChosen(const ModelSpec& spec, const WeightId& id) {
  return !RowOf(id.role).per_expert ||
         id.expert < spec.layer(id.layer).moe.routing.experts_per_token;
}

template <typename Counts>
int64_t CountParameters(const ModelSpec& spec, const Counts& counts) {
  int64_t count = 0;
  for (const WeightId& id : StoredWeights(spec)) {
    if (id.part != WeightPart::kWeight && id.part != WeightPart::kBias) continue;
    if (!counts(id)) continue;
    const QuantScheme scheme = SchemeOf(spec, id.role, id.layer);
    count += WeightShape(spec, id).NumElements() *
             (id.part == WeightPart::kWeight ? scheme.elements_per_byte() : 1);
  }
  return count;
}

}  // namespace

int64_t NumParameters(const ModelSpec& spec) {
  return CountParameters(spec, [](const WeightId&) { return true; });
}

int64_t NumActiveParameters(const ModelSpec& spec) {
  return CountParameters(spec, [&](const WeightId& id) { return IsOfChosen(spec, id); });
}

int64_t StoredBytes(const ModelSpec& spec) {
  int64_t bytes = 0;
  for (const WeightId& id : StoredWeights(spec)) bytes += BytesOf(spec, id);
  return bytes;
}

int64_t StepWeightBytes(const ModelSpec& spec) {
  int64_t bytes = 0;
  for (const WeightId& id : StoredWeights(spec)) {
    // A tied embedding is read as the head. Input scales travel with the call, and those of the
    // cache are no product's.
    if (id.role == WeightRole::kEmbedding && !spec.tied_head) continue;
    if (!RowOf(id.part).follows_rows() || !IsOfChosen(spec, id)) continue;
    bytes += BytesOf(spec, id);
  }
  return bytes;
}

}  // namespace tandem
