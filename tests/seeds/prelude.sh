# shellcheck shell=bash
# Sourced before a document: its Python, the test's own lines, and the stop of its server.

python3() { "$PYTHON" "$@"; }
python() { "$PYTHON" "$@"; }

fail() { printf 'check: %s\n' "$*" >&2; exit 1; }

# wait_until_ready MODEL...: the log has a table with exactly these models, all READY, and the three addresses; the process has the
# name that `pkill` looks for. Sets server_pid, http_port, grpc_port and metrics_port.
wait_until_ready() {
  local log=$server_log rows expected
  [ -z "${triton_log:-}" ] || log=$triton_log
  server_pid=$(sed -n 's/^tritonserver started as process \([0-9]*\):.*/\1/p' "$server_log" | tail -n 1)
  [ "$server_pid" ] || fail "the launcher started nothing: $(cat "$server_log")"
  for _ in {1..600}; do
    if grep -qs 'Started Metrics Service at' "$log"; then break; fi
    [ -e "/proc/$server_pid" ] || fail "the server ended: $(cat "$server_log" "$log")"
    sleep 0.1
  done
  http_port=$(address 'Started HTTPService at' "$log")
  grpc_port=$(address 'Started GRPCInferenceService at' "$log")
  metrics_port=$(address 'Started Metrics Service at' "$log")
  [ "$http_port" ] && [ "$grpc_port" ] && [ "$metrics_port" ] || fail "an address is missing in $(cat "$log")"
  rows=$(sed -n 's/^| \([a-z_]*\) *| 1 *| READY *|$/\1/p' "$log")
  expected=$(printf '%s\n' "$@")
  [ "$rows" = "$expected" ] || fail "the table has $rows, not $expected: $(cat "$log")"
  [ "$(cat "/proc/$server_pid/comm")" = tritonserver ] || fail "the process has another name"
  check_metric tandem_build_info
  curl -f "localhost:$http_port/v2/health/ready" || fail "not ready"
}

address() { # TEXT LOG: the port after the text and 127.0.0.1
  sed -n "s/^.*$1 127\.0\.0\.1:\([0-9]*\)\$/\1/p" "$2"
}

# check_generated COUNT: this many JSON answers of the ensemble on stdin, one after another, with the members that the document shows.
check_generated() {
  "$PYTHON" -c '
import json, sys
text, answers = sys.stdin.read(), []
while text := text.strip():
    answer, end = json.JSONDecoder().raw_decode(text)
    answers.append(answer)
    text = text[end:]
members = ["cum_log_probs", "model_name", "model_version", "output_log_probs", "sequence_end", "sequence_id",
           "sequence_start", "text_output"]
assert len(answers) == int(sys.argv[1]), (len(answers), answers)
for answer in answers:
    assert list(answer) == members, answer
    assert answer["model_name"] == "ensemble" and answer["model_version"] == "1" and answer["text_output"], answer
    assert answer == answers[0], (answer, answers[0])
print(answers[0]["text_output"])
' "$1" || fail "the answers are not those of the document"
}

# check_contains TEXT FILE
check_contains() { grep -qF -- "$1" "$2" || fail "\"$1\" is not in $2: $(cat "$2")"; }

# check_lacks TEXT FILE
check_lacks() { if grep -qF -- "$1" "$2"; then fail "\"$1\" is in $2: $(cat "$2")"; fi; }

# check_metric EXPRESSION: the start of a line of the metrics.
check_metric() {
  curl -f "localhost:$metrics_port/metrics" -o "$root/metrics.txt"
  grep -q "^$1" "$root/metrics.txt" || fail "no line of the metrics begins with $1: $(cat "$root/metrics.txt")"
}

# check_ranks REASON: a model serves on two ranks, for that reason; on one where there is one core.
check_ranks() {
  local log=$server_log
  [ -z "${triton_log:-}" ] || log=$triton_log
  if [ "$(nproc)" -gt 1 ]; then
    check_metric 'tandem_ranks 2$'
    check_contains "the model runs on 2 ranks, $1" "$log"
  else
    check_metric 'tandem_ranks 1$'
  fi
}

# check_final_text PROMPT FILE: the speculative client has printed what the ensemble answers, prompt and all.
check_final_text() {
  local text expected
  text=$(sed 1d "$2")
  [ "$(head -n 1 "$2")" = "Final text:" ] || fail "no final text: $(cat "$2")"
  expected=$(python3 inflight_batcher_llm/client/end_to_end_grpc_client.py -u "localhost:$grpc_port" -p "$1" -o 100 \
    --end-id 2 --pad-id 2 | sed -n 's/^Sequence 0, output beam 0: //p')
  [ "$text" = "$expected" ] || fail "\"$text\" is not the ensemble's \"$expected\""
  [[ $text == "$1"?* ]] || fail "\"$text\" does not continue the prompt"
}

# Stops this document's server by its id, and waits for its end.
stop_server() {
  kill "$server_pid"
  for _ in {1..300}; do
    if [ ! -e "/proc/$server_pid" ] || grep -q '^State:.Z' "/proc/$server_pid/status" 2>/dev/null; then return; fi
    sleep 0.1
  done
  fail "the server has not ended 30 s after SIGTERM: $(cat "$server_log")"
}
