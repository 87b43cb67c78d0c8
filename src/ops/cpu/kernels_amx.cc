// The kernels compiled for AMX: products and attention of bf16, and products of quantized weights,
// in the tile unit; everything else as in plain AVX-512.
//
// A bf16 sum goes through the inputs 32 at a time, whatever the number of rows: even and odd inputs
// of the 32 are summed separately, then both are added to the running sum (as TDPBF16PS does).
#include <immintrin.h>

#include "ops/cpu/inline.inc"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {
// clang-format off: each builds on the one before
#include "ops/cpu/simd_avx512.inc"
#include "ops/cpu/vector_math.inc"
#include "ops/cpu/tile.inc"
#include "ops/cpu/linear.inc"
#include "ops/cpu/bf16_words_avx512.inc"
#include "ops/cpu/group_sums.inc"
#include "ops/cpu/round_inputs_avx512.inc"
#include "ops/cpu/unpack_avx512.inc"
#include "ops/cpu/forward.inc"
// clang-format on

constexpr int64_t kTileRows = 16;     // rows of activations in a tile
constexpr int64_t kTileInputs = 32;   // inputs in a tile: 64 bytes per row
constexpr int64_t kTileBytes = 1024;  // of weights: 16 pairs of inputs x 16 outputs
// A pass: its rows' part of a block of inputs (512 KB) stays in L2 while all panels are read, two
// at a time, and so do the sums of a chunk of panels. A block of two panels (32 KB) stays in L1,
// past which the rows are loaded: 34 ns for a step of 2 x 2 tiles, where longer blocks took 53.
constexpr int64_t kAmxLinearRows = 512;
constexpr int64_t kAmxBlockInputs = 512;
constexpr int64_t kAmxChunkPanels = 16;

// GCC's tile loads do not declare that they read memory: stored values must be in memory by now.
// (The load of a configuration declares 8 of its 64 bytes.)
TANDEM_INLINE void StoresBeforeTileLoads() { asm volatile("" : : : "memory"); }

// Tiles 0..3 are sums (2 x 2, or 1 x 4 for one row tile), 4 and 5 activations, 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr int64_t kTileRowBytes = 64;  // of full tiles

// `first_rows` and `second_rows` of the two row tiles; 0 second rows means a single tile. Rows of
// activations have `width` bytes, and tiles of weights a row for each four of them.
void Configure(int64_t first_rows, int64_t second_rows, int64_t width = kTileRowBytes) {
  TileConfig config;
  const auto set = [&](int tile, int64_t rows) TANDEM_INLINE_LAMBDA {
    config.row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? width : kTileRowBytes);
    config.rows[tile] = static_cast<uint8_t>(rows);
  };
  set(0, first_rows);
  set(1, first_rows);
  set(2, second_rows > 0 ? second_rows : first_rows);
  set(3, second_rows > 0 ? second_rows : first_rows);
  set(4, first_rows);
  set(5, second_rows > 0 ? second_rows : first_rows);
  set(6, width / 4);
  set(7, width / 4);
  asm volatile("" : : "m"(config));
  _tile_loadconfig(&config);
}

// Row tiles of a batch: 16 rows each except the last. Packed: one block of inputs after another,
// and within it one tile after another, each [inputs of the block / 32][rows][32]. If whole rows
// were stored one after another, the tiles of one block would lie a power of two apart and evict
// each other from the caches.
struct RowTiles {
  explicit RowTiles(int64_t num_rows)
      : rows(num_rows), count((num_rows + kTileRows - 1) / kTileRows) {}
  int64_t Rows(int64_t tile) const {
    const int64_t left = rows - tile * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  // Offset in elements of a tile in the block of inputs that starts at `first`.
  int64_t Offset(int64_t tile, int64_t first, int64_t inputs) const {
    const int64_t left = inputs - first;
    const int64_t width = left < kAmxBlockInputs ? left : kAmxBlockInputs;
    return first * rows + tile * kTileRows * width;
  }
  int64_t rows;
  int64_t count;
};

void PackTiles(const PackJob& job, int64_t tile_begin, int64_t tile_end) {
  const RowTiles tiles(job.num_rows);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t rows = tiles.Rows(tile);
    const auto* x = static_cast<const uint16_t*>(job.x) + tile * kTileRows * job.x_stride;
    for (int64_t row = 0; row < rows; ++row, x += job.x_stride) {
      for (int64_t i = 0; i < job.padded_inputs; i += kTileInputs) {
        const int64_t first = i / kAmxBlockInputs * kAmxBlockInputs;
        auto* out = static_cast<uint16_t*>(job.packed) +
                    tiles.Offset(tile, first, job.padded_inputs) + (i - first) * rows;
        const int64_t left = job.inputs - i;
        // Copied as bits; lanes past the last input become zeros.
        const __mmask32 mask =
            left >= 32 ? ~__mmask32{0} : (__mmask32{1} << (left > 0 ? left : 0)) - 1;
        _mm512_storeu_si512(out + row * kTileInputs, _mm512_maskz_loadu_epi16(mask, x + i));
      }
    }
  }
}

// What the tile unit multiplies: bf16, or rounded inputs by weights of int8 plus 128, which gives
// int32 sums.
enum class TileProduct : uint8_t { kBf16, kInt8 };

// A block of inputs for a pair of row tiles (or a single last one) and 2 (or 4) panels.
struct TileBlock {
  const char* a0;  // [rows of the tile][width], a step after the other
  const char* a1;
  int64_t a0_step;  // bytes from a step to the next
  int64_t a1_step;
  int64_t rows0;
  int64_t rows1;
  int64_t width;  // bytes of a row of activations in a step
  const char* w;  // first panel, at the block's first input
  int64_t panel_bytes;
  int64_t steps;
  float* sums;  // of the first panel: [rows, stride]; int32 of int8
  int64_t stride;
  int64_t panel_sums;  // from a panel's sums to the next panel's
  bool accumulate;
  const char* next;        // weights to prefetch meanwhile
  int64_t lines_per_step;  // of each panel, for 32 inputs
};

// Tile numbers are immediates.
#define TANDEM_MULTIPLY_TILES(sums, a, w)  \
  if constexpr (P == TileProduct::kInt8) { \
    _tile_dpbsud(sums, a, w);              \
  } else {                                 \
    _tile_dpbf16ps(sums, a, w);            \
  }

// 2 row tiles x 2 panels: every loaded tile is used twice. Rows are loaded past L1, where the
// weights stay for the next ones.
template <TileProduct P>
void Multiply2x2(const TileBlock& b) {
  const auto stride = static_cast<size_t>(b.stride) * sizeof(float);
  const auto width = static_cast<size_t>(b.width);
  const int64_t w_step = b.width * kPanelOutputs;
  float* first = b.sums;
  float* second = b.sums + b.rows0 * b.stride;
  if (b.accumulate) {
    _tile_loadd(0, first, stride);
    _tile_loadd(1, first + b.panel_sums, stride);
    _tile_loadd(2, second, stride);
    _tile_loadd(3, second + b.panel_sums, stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < b.steps; ++step) {
    const char* w = b.w + step * w_step;
    const char* next = b.next + step * b.lines_per_step * 64;
    for (int64_t line = 0; line < b.lines_per_step; ++line) {
      __builtin_prefetch(next + line * 64, 0, 2);
      __builtin_prefetch(next + b.panel_bytes + line * 64, 0, 2);
    }
    _tile_loadd(6, w, kTileRowBytes);
    _tile_stream_loadd(4, b.a0 + step * b.a0_step, width);
    TANDEM_MULTIPLY_TILES(0, 4, 6);
    _tile_loadd(7, w + b.panel_bytes, kTileRowBytes);
    TANDEM_MULTIPLY_TILES(1, 4, 7);
    _tile_stream_loadd(5, b.a1 + step * b.a1_step, width);
    TANDEM_MULTIPLY_TILES(2, 5, 6);
    TANDEM_MULTIPLY_TILES(3, 5, 7);
  }
  _tile_stored(0, first, stride);
  _tile_stored(1, first + b.panel_sums, stride);
  _tile_stored(2, second, stride);
  _tile_stored(3, second + b.panel_sums, stride);
}

void PrefetchTile(const char* w) {
  for (int64_t i = 0; i < kTileBytes; i += 64) __builtin_prefetch(w + i);
}

// 1 row tile x 1 panel; weights from memory are prefetched.
template <TileProduct P, bool kFromMemory = false>
void Multiply1x1(const TileBlock& b, bool second_tile) {
  // Tile numbers are immediates and their row counts are fixed: the second row tile has a separate
  // number.
  const auto stride = static_cast<size_t>(b.stride) * sizeof(float);
  const auto width = static_cast<size_t>(b.width);
  const int64_t w_step = b.width * kPanelOutputs;
  if (second_tile) {
    float* sums = b.sums + b.rows0 * b.stride;
    if (b.accumulate) {
      _tile_loadd(2, sums, stride);
    } else {
      _tile_zero(2);
    }
    for (int64_t step = 0; step < b.steps; ++step) {
      _tile_loadd(5, b.a1 + step * b.a1_step, width);
      _tile_loadd(6, b.w + step * w_step, kTileRowBytes);
      TANDEM_MULTIPLY_TILES(2, 5, 6);
    }
    _tile_stored(2, sums, stride);
    return;
  }
  if (b.accumulate) {
    _tile_loadd(0, b.sums, stride);
  } else {
    _tile_zero(0);
  }
  for (int64_t step = 0; step < b.steps; ++step) {
    if constexpr (kFromMemory) PrefetchTile(b.w + (step + 2) * w_step);
    _tile_loadd(4, b.a0 + step * b.a0_step, width);
    _tile_loadd(6, b.w + step * w_step, kTileRowBytes);
    TANDEM_MULTIPLY_TILES(0, 4, 6);
  }
  _tile_stored(0, b.sums, stride);
}

// A pair of row tiles, or a single one, x 1 or 2 panels.
template <TileProduct P>
void MultiplyTiles(const TileBlock& b, int64_t panels) {
  if (b.rows1 > 0 && panels == 2) return Multiply2x2<P>(b);
  TileBlock one = b;
  for (int64_t panel = 0; panel < panels; ++panel) {
    Multiply1x1<P>(one, false);
    if (b.rows1 > 0) Multiply1x1<P>(one, true);
    one.w += b.panel_bytes;
    one.sums += b.panel_sums;
  }
}

// 1 row tile x 4 panels: four independent sums hide the tile unit's latency; weights from memory
// are prefetched.
template <TileProduct P, bool kFromMemory>
void Multiply1x4(const TileBlock& b) {
  const auto stride = static_cast<size_t>(b.stride) * sizeof(float);
  const auto width = static_cast<size_t>(b.width);
  const int64_t w_step = b.width * kPanelOutputs;
  if (b.accumulate) {
    _tile_loadd(0, b.sums, stride);
    _tile_loadd(1, b.sums + 16, stride);
    _tile_loadd(2, b.sums + 32, stride);
    _tile_loadd(3, b.sums + 48, stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < b.steps; ++step) {
    const char* w = b.w + step * w_step;
    if constexpr (kFromMemory) {
      for (int64_t panel = 0; panel < 4; ++panel) {
        PrefetchTile(w + panel * b.panel_bytes + 2 * kTileBytes);
      }
    }
    _tile_loadd(4, b.a0 + step * b.a0_step, width);
    _tile_loadd(6, w, kTileRowBytes);
    TANDEM_MULTIPLY_TILES(0, 4, 6);
    _tile_loadd(7, w + b.panel_bytes, kTileRowBytes);
    TANDEM_MULTIPLY_TILES(1, 4, 7);
    _tile_loadd(6, w + 2 * b.panel_bytes, kTileRowBytes);
    TANDEM_MULTIPLY_TILES(2, 4, 6);
    _tile_loadd(7, w + 3 * b.panel_bytes, kTileRowBytes);
    TANDEM_MULTIPLY_TILES(3, 4, 7);
  }
  _tile_stored(0, b.sums, stride);
  _tile_stored(1, b.sums + 16, stride);
  _tile_stored(2, b.sums + 32, stride);
  _tile_stored(3, b.sums + 48, stride);
}

// Weights of this many bytes may lie in a cache.
constexpr int64_t kCachedWeightBytes = int64_t{8} << 20;
constexpr int64_t kMostSerialRows = 4;

// At most 16 rows: each panel is read once. For few rows and weights in memory, one panel after
// another is 6 % faster than four side by side: the prefetches follow one stream, and waiting for
// memory takes longer than the tile unit's latency.
void StreamTiles(const LinearJob& job, int64_t begin, int64_t end, float* scratch) {
  TileBlock b = {};
  b.a0 = static_cast<const char*>(job.activations);
  b.rows0 = job.num_rows;
  b.width = kTileRowBytes;
  b.a0_step = job.num_rows * kTileRowBytes;
  b.panel_bytes = job.inputs * 32;
  b.steps = job.inputs / kTileInputs;
  b.sums = scratch;
  const bool serial =
      job.num_rows <= kMostSerialRows && job.outputs * job.inputs * 2 > kCachedWeightBytes;
  Configure(b.rows0, 0);
  for (int64_t panel = begin; panel < end;) {
    const int64_t panels = !serial && end - panel >= 4 ? 4 : 1;
    b.w = static_cast<const char*>(job.weights) + panel * b.panel_bytes;
    b.stride = panels * 16;
    if (panels == 4) {
      Multiply1x4<TileProduct::kBf16, true>(b);
    } else {
      Multiply1x1<TileProduct::kBf16, true>(b, false);
    }
    StoreRows(job, scratch, b.stride, 0, job.num_rows, panel * 16, panels * 16);
    panel += panels;
  }
}

// One block of inputs of one or two panels, for all rows. Meanwhile it prefetches the next weights:
// two panels of this block's size at b.next.
void BlockTiles(const LinearJob& job, const RowTiles& tiles, TileBlock b, int64_t panels,
                int64_t first_input) {
  const auto* activations = static_cast<const char*>(job.activations);
  const int64_t pairs = (tiles.count + 1) / 2;
  b.lines_per_step = (kTileBytes / 64 + pairs - 1) / pairs;
  int64_t configured = 0;  // the row counts in the unit's configuration
  for (int64_t tile = 0; tile < tiles.count; tile += 2) {
    const bool alone = tile + 1 == tiles.count;
    b.a0 = activations + 2 * tiles.Offset(tile, first_input, job.inputs);
    b.rows0 = tiles.Rows(tile);
    b.rows1 = alone ? 0 : tiles.Rows(tile + 1);
    b.a1 = alone ? b.a0 : activations + 2 * tiles.Offset(tile + 1, first_input, job.inputs);
    b.a0_step = b.rows0 * kTileRowBytes;
    b.a1_step = b.rows1 * kTileRowBytes;
    const int64_t setting = b.rows0 * 32 + b.rows1;  // at most 16 each
    if (setting != configured) {
      Configure(b.rows0, b.rows1);
      configured = setting;
    }
    MultiplyTiles<TileProduct::kBf16>(b, panels);
    b.sums += 2 * kTileRows * b.stride;
    b.next += b.steps * b.lines_per_step * 64;
  }
}

// The sums of a chunk lie one panel after another, [panels][rows][16], so that a tile of them is
// contiguous: side by side their rows would lie a power of two apart.
void StoreChunk(const LinearJob& job, const float* sums, int64_t first_panel, int64_t panels) {
  float row_sums[kAmxChunkPanels * kPanelOutputs];
  for (int64_t row = 0; row < job.num_rows; ++row) {
    for (int64_t panel = 0; panel < panels; ++panel) {
      Store(row_sums + panel * kPanelOutputs,
            Load(sums + (panel * job.num_rows + row) * kPanelOutputs));
    }
    StoreRows(job, row_sums, kAmxChunkPanels * kPanelOutputs, row, 1, first_panel * kPanelOutputs,
              panels * kPanelOutputs);
  }
}

void BlockedTiles(const LinearJob& job, int64_t begin, int64_t end, float* scratch) {
  const RowTiles tiles(job.num_rows);
  const auto* weights = static_cast<const char*>(job.weights);
  TileBlock b = {};
  b.width = kTileRowBytes;
  b.panel_bytes = job.inputs * 32;
  b.stride = kPanelOutputs;
  b.panel_sums = job.num_rows * kPanelOutputs;
  for (int64_t chunk = begin; chunk < end; chunk += kAmxChunkPanels) {
    const int64_t chunk_end = chunk + kAmxChunkPanels < end ? chunk + kAmxChunkPanels : end;
    for (int64_t input = 0; input < job.inputs; input += kAmxBlockInputs) {
      const int64_t left = job.inputs - input;
      const int64_t inputs = left < kAmxBlockInputs ? left : kAmxBlockInputs;
      b.steps = inputs / kTileInputs;
      b.accumulate = input > 0;
      for (int64_t panel = chunk; panel < chunk_end; panel += 2) {
        const int64_t panels = panel + 1 < chunk_end ? 2 : 1;
        b.w = weights + panel * b.panel_bytes + input * 32;
        b.sums = scratch + (panel - chunk) * b.panel_sums;
        // The next weights: these inputs of the next panels, or the chunk's first panels at the
        // next inputs, or the next chunk's.
        const bool in_chunk = panel + 2 < chunk_end;
        const bool last_inputs = left <= kAmxBlockInputs;
        const int64_t next_panel = in_chunk ? panel + 2 : last_inputs ? chunk_end : chunk;
        const int64_t next_input = in_chunk ? input : last_inputs ? 0 : input + inputs;
        b.next = weights + next_panel * b.panel_bytes + next_input * 32;
        BlockTiles(job, tiles, b, panels, input);
      }
    }
    StoreChunk(job, scratch, chunk, chunk_end - chunk);
  }
}

#include "ops/cpu/linear_groups_amx.inc"

// What is computed in tiles; the rest is left to kAvx512Bf16Kernels.
enum class InTiles : uint8_t { kNothing, kPlain, kGroups };

InTiles TilesOf(Element element, const QuantLayout& quant, int64_t num_rows) {
  if (quant.elements != Quantized::kNone) {
    return HasGroupTiles(element, quant, num_rows) ? InTiles::kGroups : InTiles::kNothing;
  }
  return element == Element::kBF16 ? InTiles::kPlain : InTiles::kNothing;
}

int64_t NumBlocks(const PackJob& job) {
  const bool none = TilesOf(job.element, job.quant, job.num_rows) == InTiles::kNothing;
  return none ? kAvx512Bf16Kernels.num_linear_blocks(job) : RowTiles(job.num_rows).count;
}

void PackActivations(const PackJob& job, int64_t begin, int64_t end) {
  switch (TilesOf(job.element, job.quant, job.num_rows)) {
    case InTiles::kNothing:
      return kAvx512Bf16Kernels.pack_activations(job, begin, end);
    case InTiles::kPlain:
      return PackTiles(job, begin, end);
    case InTiles::kGroups:
      return PackGroupTiles(job, begin, end);
  }
}

void LinearPanels(const LinearJob& job, int64_t begin, int64_t end, float* scratch) {
  switch (TilesOf(job.element, job.quant, job.num_rows)) {
    case InTiles::kNothing:
      return kAvx512Bf16Kernels.linear_panels(job, begin, end, scratch);
    case InTiles::kPlain:
      if (job.num_rows <= kTileRows) {
        StreamTiles(job, begin, end, scratch);
      } else {
        BlockedTiles(job, begin, end, scratch);
      }
      break;
    case InTiles::kGroups:
      GroupTilePanels(job, begin, end, scratch);
      break;
  }
  // Configured tiles cost power and make every context switch save 8 KB.
  _tile_release();
}

double TileBurst(int64_t steps) {
  // Not zeros: the unit would draw less power and clock higher than in real work.
  alignas(64) uint16_t values[512];
  for (int i = 0; i < 512; ++i) values[i] = static_cast<uint16_t>(0x3c00 + i * 37 % 0x300);
  asm volatile("" : : "m"(values));
  Configure(kTileRows, kTileRows);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, values, kTileRowBytes);
  _tile_loadd(5, values, kTileRowBytes);
  _tile_loadd(6, values, kTileRowBytes);
  _tile_loadd(7, values, kTileRowBytes);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 4 * 16 * 16 * 32 * static_cast<double>(steps);
}

double MatrixBurst(Element element, int64_t steps) {
  return element == Element::kBF16 ? TileBurst(steps) : kAvx512Kernels.matrix_burst(element, steps);
}

#include "ops/cpu/attention_amx.inc"

constexpr CpuKernels TileKernels() {
  CpuKernels kernels = ForwardToAvx512("amx");
  kernels.num_linear_blocks = NumBlocks;
  kernels.pack_activations = PackActivations;
  kernels.linear_panels = LinearPanels;
  kernels.attention_scratch_floats = TileAttentionScratchFloats;
  kernels.attention = TileAttention;
  kernels.matrix_burst = MatrixBurst;
  kernels.linear_rows = kAmxLinearRows;
  kernels.rounds_inputs = true;
  return kernels;
}

}  // namespace

constinit const CpuKernels kAmxKernels = TileKernels();

}  // namespace tandem::ops::cpu
