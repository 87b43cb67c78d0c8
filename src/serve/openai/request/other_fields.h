// The table of the fields of both routes that change no answer here: those accepted because they
// cannot, and those refused by name because they would have to. Errors stay in the reader.
#pragma once

#include "serve/field_reader.h"

namespace tandem::serve::openai {

void CheckOtherFields(FieldReader& fields);

}  // namespace tandem::serve::openai
