# The requests, and the stop: the same in all three deployments.
python3 inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py \
--url-target=localhost:8001 \
--draft-tensorrt-llm-model-name=${DRAFT_MODEL_NAME} \
--target-tensorrt-llm-model-name=${TARGET_MODEL_NAME} \
--output-len=100 \
--num-draft-tokens=4 \
--end-id=2 \
--pad-id=2 \
--prompt "What is Ubuntu operation system?" | tee final_text.txt
check_final_text "What is Ubuntu operation system?" final_text.txt

cat >input_data.json <<'JSON'
[
{
"input": "What is Ubuntu operation system?",
"instruction": "Answer the question shortly.",
"output": " "
}
]
JSON

### Use BLS speculative decoding
python3 tools/inflight_batcher_llm/speculative_decoding_test.py \
--max-input-len 2500 \
--dataset input_data.json \
--url-control=localhost:8001 \
--url-target=localhost:8001 \
--url-draft=localhost:8001 \
--draft-tensorrt-llm-model-name="${DRAFT_MODEL_NAME}" \
--target-tensorrt-llm-model-name="${TARGET_MODEL_NAME}" \
--bls-speculative-tensorrt-llm-model-name="tensorrt_llm_bls" \
--execute-bls-speculative-decoding \
--disable-output-comparison \
--num-draft-tokens=4 \
--use-draft-logits | tee comparison.txt
check_contains 'failed/total: 0/1' comparison.txt
### Use client-side speculative decoding
python3 tools/inflight_batcher_llm/speculative_decoding_test.py \
--max-input-len 2500 \
--dataset input_data.json \
--url-control=localhost:8001 \
--url-target=localhost:8001 \
--url-draft=localhost:8001 \
--draft-tensorrt-llm-model-name="${DRAFT_MODEL_NAME}" \
--target-tensorrt-llm-model-name="${TARGET_MODEL_NAME}" \
--bls-speculative-tensorrt-llm-model-name="tensorrt_llm_bls" \
--disable-output-comparison \
--num-draft-tokens=4 \
--use-draft-logits | tee comparison.txt
check_contains 'failed/total: 0/1' comparison.txt
check_metric 'tandem_drafts_accepted_total [1-9]' # by the target, of the draft model

pkill tritonserver
