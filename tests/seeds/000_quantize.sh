# Target and draft models: quantize both to fp8, build both, and ask the pair. The paths are those of the embedded pair.
mkdir -p /opt/TensorRT-LLM-examples/quantization
ln -s "$root"/tensorrtllm_backend/* /opt/TensorRT-LLM-examples/quantization/
cp -r "$PAIR/target" /workspace-target
cp -r "$PAIR/draft" /workspace-draft

for model in target draft; do
python /opt/TensorRT-LLM-examples/quantization/quantize.py --model_dir "$root"/workspace-$model --dtype auto --qformat fp8 --kv_cache_dtype fp8 --output_dir "$root"/checkpoint-$model --calib_size 512 --tp_size 2 --pp_size 1
done
check_contains '"quant_algo": "FP8"' "$root"/checkpoint-target/config.json
check_contains '"kv_cache_quant_algo": "FP8"' "$root"/checkpoint-target/config.json

trtllm-build --checkpoint_dir "$root"/checkpoint-target  --output_dir  "$root"/engine-target  --max_num_tokens 4096 --max_input_len 127000 --max_seq_len 128000 --max_batch_size 128 --use_fused_mlp enable  --use_paged_context_fmha enable --gemm_plugin fp8 --use_fp8_context_fmha enable --gemm_swiglu_plugin fp8 --max_draft_len=10 --speculative_decoding_mode=draft_tokens_external --gather_generation_logits
trtllm-build --checkpoint_dir "$root"/checkpoint-draft  --output_dir  "$root"/engine-draft  --max_num_tokens 4096 --max_input_len 127000 --max_seq_len 128000 --max_batch_size 128 --use_fused_mlp enable  --use_paged_context_fmha enable --gemm_plugin fp8 --use_fp8_context_fmha enable --gemm_swiglu_plugin fp8 --gather_generation_logits

"$TANDEM" run "$root"/engine-target --draft_engine_dir "$root"/engine-draft --input_text 'What does "aback" mean?' --max_output_len 40 >"$root"/answer
check_contains 'wind against the forward side' "$root"/answer
