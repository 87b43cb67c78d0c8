# Nvidia Triton w/ TensorRT-LLM backend (release 0.5.0): the templates' own folder is the repository, tokenizers are named by their id on
# a hub, and the container has nothing but scripts/ and all_models/.
# Left out: git, docker, pip and quantize.py; the engine is built from the embedded target.
"$TANDEM" convert --model_dir "$PAIR/target" --output_dir "$root/model_input" --dtype float16 >/dev/null
"$TANDEM" build --checkpoint_dir "$root/model_input" --output_dir "$root/model_output" >/dev/null

cp model_output/* tensorrtllm_backend/all_models/inflight_batcher_llm/tensorrt_llm/1/

cd tensorrtllm_backend
# modify config for the model
python3 tools/fill_template.py --in_place \
      all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt \
      decoupled_mode:true,engine_dir:/all_models/inflight_batcher_llm/tensorrt_llm/1,\
max_tokens_in_paged_kv_cache:,batch_scheduler_policy:guaranteed_completion,kv_cache_free_gpu_mem_fraction:0.2,\
max_num_sequences:4

# modify config for the preprocessing component
python tools/fill_template.py --in_place \
    all_models/inflight_batcher_llm/preprocessing/config.pbtxt \
    tokenizer_type:llama,tokenizer_dir:NousResearch/Llama-2-7b-hf

# modify config for the postprocessing component
python tools/fill_template.py --in_place \
    all_models/inflight_batcher_llm/postprocessing/config.pbtxt \
    tokenizer_type:llama,tokenizer_dir:NousResearch/Llama-2-7b-hf

# What `docker run -v $(pwd)/all_models:/all_models -v $(pwd)/scripts:/opt/scripts` shows in the container.
cp -r all_models "$root/all_models"
mkdir "$root/opt"
cp -r scripts "$root/opt/scripts"
cd "$root"

# Launch Server
python /opt/scripts/launch_triton_server.py --model_repo /all_models/inflight_batcher_llm --world_size 1

wait_until_ready ensemble postprocessing preprocessing tensorrt_llm tensorrt_llm_bls
check_contains 'NousResearch/Llama-2-7b-hf' "$server_log"

curl -X POST localhost:8000/v2/models/ensemble/generate -d \
'{"text_input": "How do I count to nine in French?",
"parameters": {"max_tokens": 100, "bad_words":[""],"stop_words":[""]}}' | check_generated 1

pkill tritonserver
