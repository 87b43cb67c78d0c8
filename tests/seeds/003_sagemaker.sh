# SageMaker's LMI container with TensorRT-LLM (0.26): one file of properties with comments after its values, packed as the guide packs it.
# A local folder stands for <your model>, and the lines that SageMaker runs on its side follow those of the guide.
cat >serving.properties <<'PROPERTIES'
option.model_id=<your model>
option.tensor_parallel_degree=1
option.max_rolling_batch_size=16 # default is 32
option.max_input_len=256 # default is 1024
option.max_output_len=256 # default is 512
PROPERTIES
sed -i "s|<your model>|$PAIR/target|" serving.properties

mkdir model
mv serving.properties model/
tar czvf model.tar.gz model/
rm -rf model

# SageMaker unpacks the archive, and starts the container with the word `serve`.
mkdir -p /opt/ml/model
tar xzf model.tar.gz -C /opt/ml/model
chmod -R a-w "$root/opt/ml/model"
SERVING_MODEL_STORE="$root/opt/ml/model" SERVING_PORT=0 timeout 200 "$TANDEM" serve >"$server_log" 2>&1 &
server_pid=$!
trap 'kill "$server_pid" 2>/dev/null || true; chmod -R u+w "$root/opt/ml/model"' EXIT
for _ in {1..600}; do
  if grep -qs 'Started HTTPService at' "$server_log"; then break; fi
  [ -e "/proc/$server_pid" ] || fail "the server ended: $(cat "$server_log")"
  sleep 0.1
done
http_port=$(sed -n 's/^.*Started HTTPService at 0\.0\.0\.0:\([0-9]*\)$/\1/p' "$server_log")
[ "$http_port" ] || fail "it does not listen on all addresses: $(cat "$server_log")"
curl -f "localhost:$http_port/v2/health/ready" || fail "not ready"
check_contains "max_rolling_batch_size: '16 # default is 32' is read as '16'" "$server_log"
curl -f "localhost:$http_port/v1/models" -o models.json
check_contains '"id":"model"' models.json
curl -f "localhost:$http_port/v2/models/model/generate" \
  -d '{"text_input": "What does \"tandem\" mean?", "max_tokens": 100}' -o answer.json
check_contains bicycle answer.json
# 256 tokens of a prompt, 512 of both.
curl "localhost:$http_port/v2/models/model/generate" -o refused.json \
  -d "{\"text_input\": \"$(printf 'word %.0s' {1..300})\", \"max_tokens\": 10}"
check_contains error refused.json
kill "$server_pid"
wait "$server_pid" || fail "it ended with an error: $(cat "$server_log")"
