#!/usr/bin/env bash
# The old name of llgtrt's server.
#   launch-llgtrt.sh TARGET [DRAFT] [options of llgtrt, or of `tandem serve`]
# TARGET and DRAFT are folders of models or engines. The program is $LLGTRT_BIN or $TANDEM, tandem beside this script, in
# the bundle or checkout around it, or on the PATH.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

find_tandem() {
  local candidate
  for candidate in "${LLGTRT_BIN:-}" "${TANDEM:-}" "$here/tandem" "$here/../bin/tandem" \
    "$here/../build/release/tandem" "$(command -v tandem || true)"; do
    if [ -f "$candidate" ] && [ -x "$candidate" ]; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  echo "launch-llgtrt.sh: there is no tandem; put it on the PATH, or name it in \$TANDEM" >&2
  return 1
}

if [ $# -eq 0 ]; then
  echo "launch-llgtrt.sh: names no target; it takes TARGET [DRAFT] and options (--help lists them)" >&2
  exit 2
fi
tandem=$(find_tandem)
exec "$tandem" serve --as_llgtrt=true "$@"
