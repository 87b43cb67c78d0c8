// The ops that read and write the key-value pool.
#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/host_scratch.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/pieces.h"
#include "ops/cpu/row_access.h"

namespace tandem::ops::cpu {
namespace {

// Query rows per job: enough to pay for transposing the keys, few enough to balance the load.
constexpr int64_t kJobQueryRows = 96;
static_assert(kJobQueryRows <= kMaxQueryRows);

// Of a sequence: keys that each of its rows sees.
int32_t PrefixLen(const BatchView& batch, int32_t seq) {
  return batch.prefix_len == nullptr ? 0 : std::min(batch.prefix_len[seq], batch.context_len[seq]);
}

// First element of a (layer, k or v, head) in block 0.
int64_t PlaneOffset(const KvGroup& kv, int32_t layer, bool values, int64_t head) {
  const int64_t plane = values && kv.latent_dim == 0 ? 1 : 0;
  return ((int64_t{layer} * kv.planes() + plane) * kv.num_kv_heads + head) * kv.elements_per_head();
}

// First element of a position's key or value within its plane.
int64_t TokenOffset(const KvGroup& kv, const int32_t* block_table, int64_t position) {
  return block_table[position / kv.block_tokens] * kv.elements_per_block() +
         position % kv.block_tokens * kv.head_dim;
}

// Of a kv head of a layer.
float ScaleOf(const float* scales, int64_t head) { return scales == nullptr ? 1.0f : scales[head]; }

void CheckGroup(const KvGroup& kv, DType activations) {
  TANDEM_CHECK(kv.latent_dim == 0 || (kv.key_scales.empty() && kv.value_scales.empty()),
               "latents have no scales");
  TANDEM_CHECK(kv.has_8_bits() || (kv.data.dtype == activations && kv.key_scales.empty() &&
                                   kv.value_scales.empty()),
               "keys and values have the activations' type or 8 bits, and scales in 8 bits alone");
}

// The division of the batch's attention into jobs: per sequence blocks of positions, kv heads, and
// splits of the query heads of a kv head (more than one only if there would be too few jobs for the
// threads).
struct AttentionJobs {
  AttentionJobs(const BatchView& view, const KvGroup& kv, int64_t query_heads, int num_threads)
      : batch(view), group(query_heads / kv.num_kv_heads), kv_heads(kv.num_kv_heads) {
    SetSplits((group + kJobQueryRows - 1) / kJobQueryRows);
    const int64_t wanted = 2 * num_threads;
    const int64_t jobs = Count();
    if (num_threads > 1 && jobs < wanted) {
      SetSplits(std::clamp<int64_t>((wanted + jobs - 1) / jobs * splits, 1, group));
    }
  }
  void SetSplits(int64_t count) {
    splits = count;
    const int64_t largest_split = (group + splits - 1) / splits;
    positions = std::max<int64_t>(1, kJobQueryRows / largest_split);
  }
  int64_t Rows(int32_t seq) const { return batch.query_start[seq + 1] - batch.query_start[seq]; }
  int64_t Blocks(int32_t seq) const { return (Rows(seq) + positions - 1) / positions; }
  int64_t CountOf(int32_t seq) const { return Blocks(seq) * kv_heads * splits; }
  int64_t Count() const {
    int64_t count = 0;
    for (int32_t seq = 0; seq < batch.num_seqs; ++seq) count += CountOf(seq);
    return count;
  }
  // Query-key products over all heads of all sequences.
  double Products() const {
    double products = 0.0;
    for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
      products += static_cast<double>(Rows(seq)) * batch.context_len[seq];
    }
    return products * static_cast<double>(group * kv_heads);
  }

  const BatchView& batch;
  int64_t group;
  int64_t kv_heads;
  int64_t splits = 1;
  int64_t positions = 1;  // of one job
};

}  // namespace

void CpuOps::QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                          const KvGroup& kv, int32_t layer) {
  CheckGroup(kv, qkv.dtype);
  TANDEM_CHECK(kv.latent_dim == 0, "latents are stored by LatentRopeStore");
  const int64_t head_dim = kv.head_dim;
  const int64_t parts = rope.halves ? 2 : 1;  // of a head, turned on their own
  TANDEM_CHECK(parts == 1 || batch.second_positions != nullptr, "halves need second positions");
  const int64_t part_dim = head_dim / parts;
  const int64_t pairs = rope.cos.empty() ? 0 : rope.cos.dim(1);
  TANDEM_CHECK(2 * pairs == part_dim || (parts == 1 && 2 * pairs < head_dim),
               "the rotary tables are for heads of another size");
  const int64_t num_heads = kv.query_heads(qkv.dim(1));
  const auto store_row = [&](int64_t row) {
    if (batch.row_seq[row] < 0) return;  // after the last
    const int32_t seq = batch.row_seq[row];
    const int32_t position = batch.positions[row];
    // By what the parts of a head are turned.
    const int32_t turns[2] = {batch.turns == nullptr ? position : batch.turns[row],
                              parts == 1 ? 0 : batch.second_positions[row]};
    const int64_t token =
        TokenOffset(kv, batch.block_table + int64_t{seq} * batch.max_blocks, position);
    const auto head = [&](int64_t index) { return row * qkv.dim(1) + index * head_dim; };
    TANDEM_CHECK(pairs == 0 || std::max(turns[0], turns[1]) < rope.cos.dim(0),
                 "a position beyond the rotary tables");
    HeadJob job{.element = ElementOf(qkv.dtype)};
    const auto rotate = [&](int64_t from, const Tensor& to, int64_t element) {
      job.stored = ElementOf(to.dtype);
      job.head_dim = part_dim;
      job.turned = 2 * pairs;
      for (int64_t part = 0; part < parts; ++part) {
        job.in = At(qkv, from + part * part_dim);
        job.out = At(to, element + part * part_dim);
        job.cos = rope.cos.As<float>() + turns[part] * pairs;
        job.sin = rope.sin.As<float>() + turns[part] * pairs;
        kernels_.store_head(job);
      }
    };
    if (!rope.query_factors.empty()) job.factor = rope.query_factors.As<float>()[position];
    for (int64_t h = 0; h < num_heads; ++h) rotate(head(h), qkv, head(h));
    for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
      job.factor = 1.0f / ScaleOf(kv.key_scales_of(layer), h);
      rotate(head(num_heads + h), kv.data, token + PlaneOffset(kv, layer, false, h));
    }
    job.head_dim = head_dim;
    job.turned = 0;
    for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
      job.factor = 1.0f / ScaleOf(kv.value_scales_of(layer), h);
      job.in = At(qkv, head(num_heads + kv.num_kv_heads + h));
      job.out = At(kv.data, token + PlaneOffset(kv, layer, true, h));
      kernels_.store_head(job);
    }
  };
  ForEachPiece(pool_, batch.num_rows, 1, 4.0 * static_cast<double>(qkv.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) store_row(row);
               });
}

void CpuOps::LatentRopeStore(const Tensor& q, const Tensor& latents, const RopeTable& rope,
                             const BatchView& batch, const KvGroup& kv, int32_t layer,
                             const Tensor& queries) {
  CheckGroup(kv, q.dtype);
  const int64_t pairs = rope.cos.empty() ? 0 : rope.cos.dim(1);
  const int64_t turned = 2 * pairs;
  const int64_t num_heads = kv.query_heads(queries.dim(1));
  TANDEM_CHECK(kv.num_kv_heads == 1 && kv.latent_dim + turned == kv.head_dim,
               "a token has one key: its latent, then what turns");
  TANDEM_CHECK(latents.dim(1) == kv.head_dim && queries.dim(1) == num_heads * kv.head_dim &&
                   q.dim(1) % num_heads == 0 && q.dim(1) >= num_heads * turned,
               "the rows are for heads of another size");
  TANDEM_CHECK(!rope.halves && rope.query_factors.empty(), "rows of latents turn once");
  const auto store_row = [&](int64_t row) {
    if (batch.row_seq[row] < 0) return;  // after the last
    const int32_t position = batch.positions[row];
    const int64_t turn = batch.turns == nullptr ? position : batch.turns[row];
    TANDEM_CHECK(pairs == 0 || turn < rope.cos.dim(0), "a position beyond the rotary tables");
    HeadJob job{.element = ElementOf(q.dtype)};
    const auto store = [&](const Tensor& from, int64_t first, const Tensor& to, int64_t element) {
      job.in = At(from, first);
      job.stored = ElementOf(to.dtype);
      job.out = At(to, element);
      kernels_.store_head(job);
    };
    job.head_dim = job.turned = turned;
    job.cos = rope.cos.As<float>() + turn * pairs;
    job.sin = rope.sin.As<float>() + turn * pairs;
    for (int64_t end = 1; end <= num_heads && turned > 0; ++end) {
      store(q, row * q.dim(1) + end * (q.dim(1) / num_heads) - turned, queries,
            row * queries.dim(1) + end * kv.head_dim - turned);
    }
    const int32_t* const table = batch.block_table + int64_t{batch.row_seq[row]} * batch.max_blocks;
    const int64_t token =
        TokenOffset(kv, table, position) + PlaneOffset(kv, layer, /*values=*/false, 0);
    const int64_t latent = row * latents.dim(1);
    if (turned > 0) store(latents, latent + kv.latent_dim, kv.data, token + kv.latent_dim);
    job.head_dim = kv.latent_dim;
    job.turned = 0;
    store(latents, latent, kv.data, token);
  };
  ForEachPiece(pool_, batch.num_rows, 1, 4.0 * static_cast<double>(batch.num_rows * q.dim(1)),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) store_row(row);
               });
}

float* CpuOps::AttentionScratch(int thread) const {
  return attention_scratch_.As<float>() + thread * attention_scratch_stride_;
}

void CpuOps::ReserveAttention(int64_t head_dim) {
  const int64_t floats = (kernels_.attention_scratch_floats(head_dim) + 15) / 16 * 16;
  if (floats <= attention_scratch_stride_) return;
  attention_scratch_ =
      HostScratch(static_cast<size_t>(floats * pool_.num_threads()) * sizeof(float));
  attention_scratch_stride_ = floats;
}

void CpuOps::PagedAttention(const Tensor& qkv, const BatchView& batch, const KvGroup& kv,
                            int32_t layer, const AttentionRule& rule, const Tensor& out) {
  CheckGroup(kv, qkv.dtype);
  TANDEM_CHECK(out.dtype == qkv.dtype, "the types differ");
  const int64_t num_heads = kv.query_heads(qkv.dim(1));
  TANDEM_CHECK(
      num_heads > 0 && num_heads % kv.num_kv_heads == 0 && out.dim(1) == num_heads * kv.value_dim(),
      "head counts do not fit");
  ReserveAttention(kv.head_dim);
  // Rows after the last become zeros, so that nothing odd goes through the layers that follow.
  const int64_t num_rows = batch.query_start[batch.num_seqs];
  std::memset(At(out, num_rows * out.dim(1)), 0,
              static_cast<size_t>((batch.num_rows - num_rows) * out.dim(1)) * SizeOf(out.dtype));
  if (num_rows == 0) return;
  const AttentionJobs jobs(batch, kv, num_heads, pool_.num_threads());

  const auto run = [&](int32_t seq, int64_t index, int thread) {
    // Late positions first: they see the most keys, and a long job must not come last.
    const int64_t block = jobs.Blocks(seq) - 1 - index / (jobs.kv_heads * jobs.splits);
    const int64_t kv_head = index / jobs.splits % jobs.kv_heads;
    const int64_t split = index % jobs.splits;
    const int64_t first_head = jobs.group * split / jobs.splits;
    const int64_t end_head = jobs.group * (split + 1) / jobs.splits;
    const int64_t first_row = batch.query_start[seq] + block * jobs.positions;
    const int64_t end_row =
        std::min<int64_t>(first_row + jobs.positions, batch.query_start[seq + 1]);
    const int64_t head = kv_head * jobs.group + first_head;

    AttentionJob job;
    job.element = ElementOf(qkv.dtype);
    job.q = At(qkv, first_row * qkv.dim(1) + head * kv.head_dim);
    job.q_stride = qkv.dim(1);
    job.out = At(out, first_row * out.dim(1) + head * kv.value_dim());
    job.out_stride = out.dim(1);
    job.cached = ElementOf(kv.data.dtype);
    job.keys = At(kv.data, PlaneOffset(kv, layer, false, kv_head));
    job.values = At(kv.data, PlaneOffset(kv, layer, true, kv_head));
    job.block_stride = kv.elements_per_block();
    job.block_table = batch.block_table + int64_t{seq} * batch.max_blocks;
    job.block_tokens = kv.block_tokens;
    job.head_dim = kv.head_dim;
    job.value_dim = kv.value_dim();
    job.num_heads = static_cast<int32_t>(end_head - first_head);
    job.num_positions = static_cast<int32_t>(end_row - first_row);
    job.first_position =
        static_cast<int32_t>(batch.context_len[seq] - (batch.query_start[seq + 1] - first_row));
    job.prefix_len = PrefixLen(batch, seq);
    job.scale = rule.scale * ScaleOf(kv.key_scales_of(layer), kv_head);
    job.value_scale = ScaleOf(kv.value_scales_of(layer), kv_head);
    job.soft_cap = rule.soft_cap;
    job.window = rule.window;
    job.chunk = rule.chunk;
    job.slopes = rule.slopes == nullptr ? nullptr : rule.slopes + head;
    job.sinks = rule.sinks == nullptr ? nullptr : rule.sinks + head;
    job.scratch = AttentionScratch(thread);
    kernels_.attention(job);
  };
  const double operations = 4.0 * kv.head_dim * jobs.Products();
  ForEachPiece(pool_, jobs.Count(), 1, operations, [&](const Piece& piece) {
    int32_t seq = 0;
    int64_t before = 0;  // jobs of the sequences before seq
    for (int64_t index = piece.begin; index < piece.end; ++index) {
      while (index - before >= jobs.CountOf(seq)) before += jobs.CountOf(seq++);
      run(seq, index - before, piece.thread);
    }
  });
}

void CpuOps::CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) {
  for (const KvGroup& kv : pool.groups) {
    const auto bytes =
        static_cast<size_t>(tokens) * static_cast<size_t>(kv.head_dim) * SizeOf(kv.data.dtype);
    const int64_t planes = int64_t{kv.num_layers} * kv.planes() * kv.num_kv_heads;
    for (int64_t plane = 0; plane < planes; ++plane) {
      const int64_t offset = plane * kv.elements_per_head();
      std::memcpy(At(kv.data, to * kv.elements_per_block() + offset),
                  At(kv.data, from * kv.elements_per_block() + offset), bytes);
    }
  }
}

}  // namespace tandem::ops::cpu
