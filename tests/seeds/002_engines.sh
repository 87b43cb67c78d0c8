# Draft-target speculative decoding: the engines of both workflows, and the one without a server.
# Left out: git, pip and the paths of the models, which are those of the embedded pair.
export DRAFT_MODEL_PATH="$PAIR/draft" TARGET_MODEL_PATH="$PAIR/target" HF_MODEL="$PAIR/target"
cd tensorrtllm_backend
mkdir -p examples/models/core/llama
ln -s ../../../../convert_checkpoint.py examples/models/core/llama/
cd examples/models/core/llama
export DRAFT_CKPT_PATH=/workspace/ckpt-draft
export TARGET_CKPT_PATH=/workspace/ckpt-target
export DRAFT_ENGINE_PATH=/workspace/engine-draft
export TARGET_ENGINE_PATH=/workspace/engine-target
export MAX_BATCH_SIZE=4
export MAX_DRAFT_LEN=10
export MAX_INPUT_LEN=3200
export MAX_SEQ_LEN=4800
python3 convert_checkpoint.py \
--model_dir=${DRAFT_MODEL_PATH} \
--output_dir=${DRAFT_CKPT_PATH} \
--dtype=float16
python3 convert_checkpoint.py \
--model_dir=${TARGET_MODEL_PATH} \
--output_dir=${TARGET_CKPT_PATH} \
--dtype=float16 ${TARGET_TP:-} # with tensor parallelism: --tp_size=2
trtllm-build \
--checkpoint_dir=${DRAFT_CKPT_PATH} \
--output_dir=${DRAFT_ENGINE_PATH} \
--gemm_plugin=float16 \
--use_paged_context_fmha=enable \
--max_batch_size=${MAX_BATCH_SIZE} \
--max_input_len=${MAX_INPUT_LEN} \
--max_seq_len=${MAX_SEQ_LEN}
trtllm-build \
--checkpoint_dir=${TARGET_CKPT_PATH} \
--output_dir=${TARGET_ENGINE_PATH} \
--gemm_plugin=float16 \
--use_paged_context_fmha=enable \
--speculative_decoding_mode=draft_tokens_external \
--max_batch_size=${MAX_BATCH_SIZE} \
--max_draft_len=${MAX_DRAFT_LEN} \
--max_input_len=${MAX_INPUT_LEN} \
--max_seq_len=${MAX_SEQ_LEN}
cd "$root/tensorrtllm_backend"
python3 examples/run.py \
--tokenizer_dir=${TARGET_MODEL_PATH} \
--draft_engine_dir=/workspace/engine-draft \
--engine_dir=/workspace/engine-target \
--draft_target_model_config="[4,[0],[1],False]" \
--max_output_len=256 \
--kv_cache_enable_block_reuse \
--kv_cache_free_gpu_memory_fraction=0.5 \
--input_text="How does Draft-Sampling work?" | tee output.txt
check_contains 'How does Draft-Sampling work?' output.txt

export DRAFT_MODEL_NAME="tensorrt_llm_draft"
export TARGET_MODEL_NAME="tensorrt_llm"
export TRITON_MODEL_REPO=llama_dtm
