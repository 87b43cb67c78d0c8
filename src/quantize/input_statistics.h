// What calibration keeps of the inputs of a product: magnitudes by input, and some of the rows.
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "quantize/layer_inputs.h"

namespace tandem {

// Rows of an input that are kept, at most: the search for scales compares the products of these.
inline constexpr int64_t kKeptRows = 256;

struct InputStatistics {
  int64_t num_rows = 0;        // seen
  std::vector<float> largest;  // [columns] largest magnitude
  std::vector<double> sum;     // [columns] of magnitudes
  std::vector<float> rows;     // [kept_rows, columns]: evenly spaced ones, for the search of scales
  int64_t kept_rows = 0;

  int64_t columns() const { return static_cast<int64_t>(largest.size()); }
};

// Of one layer: of each of InputsOf. No row at all has come to an expert that was never chosen.
struct LayerStatistics {
  std::map<InputId, InputStatistics> inputs;
  // Largest magnitudes: of the keys, as they are cached, of each key-value head; of the values in
  // each row of their weight.
  std::vector<float> keys;
  std::vector<float> values;
};

}  // namespace tandem
