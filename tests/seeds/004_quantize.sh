# Quantize to int4 by AWQ with the script of release 0.5, build from the quantized file's name, and copy the result into a repository.
# Left out: docker, pip and the paths of the model, which is the embedded target.
mkdir -p /app/tensorrt_llm/examples/llama /model_input /model_output
ln -s "$root"/tensorrtllm_backend/* /app/tensorrt_llm/examples/llama/
cp -r "$PAIR/target" /model_input/Llama-2-7b-hf

cd /app/tensorrt_llm/examples/llama
python quantize.py --model_dir /model_input/Llama-2-7b-hf/ \
                --dtype float16 \
                --qformat int4_awq \
                --export_path ./llama-7b-4bit-gs128-awq.pt \
                --calib_size 32
check_contains '"quant_algo": "W4A16_AWQ"' llama-7b-4bit-gs128-awq.pt/config.json

cd /app/tensorrt_llm/examples/llama
# Compile the LLaMA 7B model to TensorRT format
python build.py --model_dir /model_input/Llama-2-7b-hf/ \
                --quant_ckpt_path ./llama-7b-4bit-gs128-awq.pt \
                --dtype float16 \
                --use_gpt_attention_plugin float16 \
                --use_gemm_plugin float16 \
                --remove_input_padding \
                --use_inflight_batching \
                --paged_kv_cache \
                --use_weight_only \
                --weight_only_precision int4_awq \
                --per_group \
                --output_dir /model_output/

cd "$root"
mkdir -p repository
cp -r tensorrtllm_backend/triton_model_repo/* repository/
cp model_output/* repository/tensorrt_llm/1/
python3 tensorrtllm_backend/scripts/launch_triton_server.py --world_size=1 --model_repo=repository
wait_until_ready ensemble postprocessing preprocessing tensorrt_llm tensorrt_llm_bls
curl -X POST localhost:8000/v2/models/ensemble/generate -d '{"text_input": "What does \"aback\" mean?", "max_tokens": 40, "bad_words": "", "stop_words": ""}' >answer
check_contains 'wind against the forward side' answer
pkill tritonserver
