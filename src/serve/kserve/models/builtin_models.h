// Models that need no engine and no files besides their config.pbtxt, so that clients and public
// test suites can be tried without weights. The config's `backend` selects one:
//
//   identity  each output is the input at the same place, of any type and shape; the parameter
//             execute_delay_ms makes every answer wait
//   add_sub   OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, of any type of number but FP16
//             and BF16; without tensors in the config INT32 [16]
//   repeat    IN, DELAY, WAIT → OUT, IDX, decoupled: one response for each element of IN, DELAY[i]
//             milliseconds after the one before, then an empty final one. WAIT has no effect:
//             requests do not wait for each other
//   mock_llm  PROMPT, STREAM → TEXT: the prompt. A decoupled model with STREAM repeats it in
//             REPETITION responses, DELAY seconds apart, and fails after them if FAIL_LAST, with
//             ERROR_CODE (Triton's name; INTERNAL without one); with OUTPUT_0_DIM the text has no
//             elements. These are parameters of the request
#pragma once

#include "serve/kserve/repository.h"

namespace tandem::serve::kserve {

// UNIMPLEMENTED when the config's backend is none of these; INVALID_ARGUMENT when its tensors are
// not the model's.
Result<InferModelPtr> MakeBuiltinModel(inference::ModelConfig config);

}  // namespace tandem::serve::kserve
