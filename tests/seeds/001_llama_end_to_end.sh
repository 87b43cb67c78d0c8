# End to end workflow to run LLaMA: convert, build, copy the engine into a ready repository, launch, 20 requests at once.
# Left out: git, docker and nvidia-smi.
mkdir -p "$root/models/trt"
cp -r "$PAIR/target" "$root/models/trt/Meta-Llama-3-8B-Instruct"
mkdir -p "$root/tensorrtllm_backend/tensorrt_llm/examples/llama"
ln -s "$root/tensorrtllm_backend/convert_checkpoint.py" "$root/tensorrtllm_backend/tensorrt_llm/examples/llama/"

export models_dir=/models/trt # trt dir is a temporal solution

export model_type=llama
export model_name=Meta-Llama-3-8B-Instruct

export model_dtype=float16
export model_tp_size=1

export max_batch_size=256
export max_input_len=2048
export max_output_len=1024

export model_path=${models_dir}/${model_name}
export trt_model_path=${models_dir}/${model_name}-trt-ckpt
export trt_engine_path=${models_dir}/${model_name}-trt-engine

cd /tensorrtllm_backend
cd ./tensorrt_llm/examples/${model_type}

python3 convert_checkpoint.py \
    --model_dir ${model_path} \
    --dtype ${model_dtype} \
    --tp_size ${model_tp_size} \
    --output_dir ${trt_model_path} \

# Choose to enable/disable chunked prompt
export CHUNKED_PROMPT_FLAGS=
export CHUNKED_PROMPT_FLAGS="--context_fmha=enable --use_paged_context_fmha=enable --context_fmha_fp32_acc=enable --multi_block_mode=enable"

trtllm-build \
    --checkpoint_dir=${trt_model_path} \
    --gpt_attention_plugin=${model_dtype} \
    --gemm_plugin=${model_dtype} \
    --remove_input_padding=enable \
    --paged_kv_cache=enable \
    --tp_size=${model_tp_size} \
    --max_batch_size=${max_batch_size} \
    --max_input_len=${max_input_len} \
    --max_output_len=${max_output_len} \
    --max_num_tokens=${max_output_len} \
    --opt_num_tokens=${max_output_len} \
    --output_dir=${trt_engine_path} \
    $CHUNKED_PROMPT_FLAGS

cd /tensorrtllm_backend/triton_model_repo
cp -r ${trt_engine_path}/* ./tensorrt_llm/1

# The document's tables: these values are edited by hand.
sed -i "s/^max_batch_size: .*/max_batch_size: ${max_batch_size}/" {ensemble,preprocessing,postprocessing,tensorrt_llm,tensorrt_llm_bls}/config.pbtxt
sed -i "s|key: \"tokenizer_dir\" value: { string_value: \"\" }|key: \"tokenizer_dir\" value: { string_value: \"${model_path}\" }|" preprocessing/config.pbtxt postprocessing/config.pbtxt
grep -qF "${model_path}" preprocessing/config.pbtxt
grep -q 'decoupled: true' tensorrt_llm/config.pbtxt
grep -q 'decoupled: true' tensorrt_llm_bls/config.pbtxt
grep -q '"inflight_fused_batching"' tensorrt_llm/config.pbtxt
grep -q '"max_utilization"' tensorrt_llm/config.pbtxt
grep -q 'kv_cache_free_gpu_mem_fraction.*"0.9"' tensorrt_llm/config.pbtxt

cd /tensorrtllm_backend
python3 scripts/launch_triton_server.py --world_size=${model_tp_size} --model_repo=/tensorrtllm_backend/triton_model_repo

wait_until_ready ensemble postprocessing preprocessing tensorrt_llm tensorrt_llm_bls

curl -X POST localhost:8000/v2/models/ensemble/generate -d '{"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}' | tee answer.json | check_generated 1
check_lacks 'What is machine learning' answer.json # the document shows the answer alone

echo '{"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}' > tmp.txt
printf '%s\n' {1..20} | xargs -I % -P 20 curl -X POST localhost:8000/v2/models/ensemble/generate -d @tmp.txt | check_generated 20

pkill tritonserver
