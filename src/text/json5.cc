#include "text/json5.h"

#include "text/rust_bridge.h"

namespace tandem {

using rust_bridge::OwnedBuffer;
using rust_bridge::ToStatus;
using rust_bridge::View;

Result<std::string> Json5ToJson(std::string_view text) {
  OwnedBuffer json;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(
      ToStatus(tandem_text_json5_to_json(View(text), json.out(), error.out()), error));
  return json.ToString();
}

}  // namespace tandem
