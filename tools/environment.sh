# shellcheck shell=bash
# Sourced by the scripts at the root: finds the tools that ./setup found or installed. Only changes PATH and exports.

tandem_cache=${TANDEM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem}
cuda_home=$tandem_cache/cuda-13.0
min_rust_minor=85 # Rust 1.85 is the first with edition 2024, which the crates need

# Arguments for cmake. Without TANDEM_CUDA in the environment a build folder keeps its choice, AUTO at first.
cuda_choice=(${TANDEM_CUDA:+"-DTANDEM_CUDA=$TANDEM_CUDA"})

say() { printf '%s\n' "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# rust_minor CARGO: prints 95 for "cargo 1.95.0", 0 when it does not run.
rust_minor() {
  local version
  version=$("$1" --version 2>/dev/null) || version=
  if [[ $version =~ ^cargo\ 1\.([0-9]+)\. ]]; then say "${BASH_REMATCH[1]}"; else say 0; fi
}

# Puts the first folder whose cargo is new enough at the head of PATH. Candidates: PATH, rustup's folder, and a distribution's
# versioned one (Ubuntu has /usr/lib/rust-1.85/bin and the like). Fails when there is none.
use_rust() {
  local cargo
  for cargo in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" /usr/lib/rust-*/bin/cargo; do
    if [ -x "$cargo" ] && [ "$(rust_minor "$cargo")" -ge "$min_rust_minor" ]; then
      PATH=$(dirname "$cargo"):$PATH
      return 0
    fi
  done
  return 1
}

# An installed compiler takes precedence over the one that `./setup --cuda` unpacks. Fails when there is neither.
use_cuda() {
  local nvcc
  for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$cuda_home/bin/nvcc"; do
    if [ -n "$nvcc" ] && [ -x "$nvcc" ]; then
      export CUDACXX=$nvcc
      return 0
    fi
  done
  return 1
}

# The virtual environments of the tests that run real clients, one for each tests/requirements-NAME.txt and, without a name, one
# for tests/requirements.txt. When one is complete it holds a copy of that file.
test_environment() { say "$tandem_cache/test-environment${1:+-$1}"; }
test_requirements() { say "tests/requirements${1:+-$1}.txt"; }

# install_test_clients [NAME]: makes the environment anew where its file has changed or an earlier run did not end.
install_test_clients() {
  local wanted environment
  wanted=$(test_requirements "${1:-}") environment=$(test_environment "${1:-}")
  if cmp -s "$wanted" "$environment/requirements.txt"; then
    say "test clients: $environment"
    return
  fi
  say "test clients: installing the packages of $wanted from PyPI into $environment"
  if [ "${dry_run:-}" ]; then return; fi
  python3 -m venv --clear "$environment"
  "$environment/bin/pip" install -q --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$environment/requirements.txt"
}
