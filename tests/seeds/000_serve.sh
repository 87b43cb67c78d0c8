# The server on the two engines, as the guide starts it: its runtime.json as it is published, beside each engine.
cat >"$root"/engine-target/runtime.json <<'JSON'
{
  "guaranteed_no_evict": false,
  "max_batch_size": 128,
  "max_num_tokens": 8192,
  "max_queue_size": 0,
  "enable_chunked_context": true,
  "enable_kv_cache_reuse": true,
  "kv_cache_free_gpu_mem_fraction": 0.6,
  "kv_cache_host_memory_megabytes": 0,
  "enable_batch_size_tuning": true,
  "enable_max_num_tokens_tuning": true,
  "kv_cache_onboard_blocks": true,
  "cross_kv_cache_fraction": null,
  "secondary_offload_min_priority": null,
  "event_buffer_max_size": null
}
JSON
cp "$root"/engine-target/runtime.json "$root"/engine-draft/
mkdir -p "$root"/usr/local/bin
ln -s "$root"/tensorrtllm_backend/launch-llgtrt.sh "$root"/usr/local/bin/

# In the background, because what follows asks it; the guide leaves the port open.
/usr/local/bin/launch-llgtrt.sh "$root"/engine-target "$root"/engine-draft --port 0 --debug >"$root"/serve.out 2>"$server_log" &
server_pid=$!
trap 'kill "$server_pid" 2>/dev/null || true' EXIT
for _ in {1..600}; do
  if grep -qs 'listening on' "$root"/serve.out; then break; fi
  [ -e "/proc/$server_pid" ] || fail "the server ended: $(cat "$root"/serve.out "$server_log")"
  sleep 0.1
done
http_port=$(address 'Started HTTPService at' "$root"/serve.out)
[ "$http_port" ] || fail "no address in $(cat "$root"/serve.out)"
metrics_port=$http_port
check_metric 'tandem_ranks '
if [ "$(nproc)" -gt 1 ]; then
  # The draft too is split: nothing says that each rank has all of it.
  check_metric 'tandem_ranks 2$'
  check_contains 'the model runs on 2 ranks, as its files were built' "$root"/serve.out
  check_lacks 'each rank has all of the draft' "$server_log"
fi
check_contains 'configuration: ' "$root"/serve.out
check_contains 'at most 256 sequences wait for a turn' "$root"/serve.out
# Engines built for 4096 tokens a step, a configuration that says 8192.
check_contains '--max_num_tokens 8192: the engine was built for 4096, which is used' "$server_log"

for stream in false true; do
  curl -f "localhost:$http_port/v1/chat/completions" -H 'content-type: application/json' \
    -d '{"model": "model", "messages": [{"role": "user", "content": "What does \"aback\" mean?"}], "max_tokens": 60, "temperature": 0, "stream": '$stream'}' \
    >"$root"/chat-$stream
done
check_contains 'wind against the forward side' "$root"/chat-false
"$PYTHON" -c '
import json, sys
events = [line[6:] for line in open(sys.argv[1]).read().splitlines() if line.startswith("data: ")]
assert len(events) > 5 and events[-1] == "[DONE]", events
chunks = [json.loads(event) for event in events[:-1]]
text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
whole = json.load(open(sys.argv[2]))
assert text == whole["choices"][0]["message"]["content"], (text, whole)
assert whole["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0, whole
' "$root"/chat-true "$root"/chat-false || fail "the stream is not the whole answer, or nothing was drafted"
curl -f "localhost:$http_port/v1/health/live" "localhost:$http_port/v1/health/model" >"$root"/health
check_contains 'Check completeCheck complete' "$root"/health

# Where the guide sets up a commonbench process.
"$TANDEM" bench serve --url "http://127.0.0.1:$http_port" --endpoint chat --num_requests 8 --concurrency 4 >"$root"/bench
check_contains 'first token' "$root"/bench
stop_server
