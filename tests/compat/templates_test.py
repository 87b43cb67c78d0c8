"""The templates of all_models/ under the command lines of the documents that people follow, copied from them."""

import re
import sys
import unittest

from old_tree import COMPAT, MODELS, OldTreeTest

sys.path.insert(0, str(COMPAT / "tools"))

import fill_template  # noqa: E402  (the folder has to be known first)

FIVE_MODELS = {"ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"}

# TensorRT-LLM, examples/draft_target_model: the three ways to deploy. First the lines that all of them have.
COPY_MODELS = r"""
rm -rf ${TRITON_MODEL_REPO}
cp -r all_models/inflight_batcher_llm/ ${TRITON_MODEL_REPO}
cp -r ${TRITON_MODEL_REPO}/tensorrt_llm ${TRITON_MODEL_REPO}/tensorrt_llm_draft
sed -i 's/name: "tensorrt_llm"/name: "tensorrt_llm_draft"/g' ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/ensemble/config.pbtxt triton_max_batch_size:4,logits_datatype:TYPE_FP32
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/preprocessing/config.pbtxt triton_max_batch_size:4,tokenizer_dir:${HF_MODEL},preprocessing_instance_count:1
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/postprocessing/config.pbtxt triton_max_batch_size:4,tokenizer_dir:${HF_MODEL},postprocessing_instance_count:1
"""
FILL_BLS = r"""
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,logits_datatype:TYPE_FP32,bls_instance_count:1,accumulate_tokens:False,tensorrt_llm_model_name:${TARGET_MODEL_NAME},tensorrt_llm_draft_model_name:${DRAFT_MODEL_NAME}
"""
SIMPLE = (
    COPY_MODELS
    + FILL_BLS
    + r"""
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,logits_datatype:TYPE_FP32,triton_backend:tensorrtllm,max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:True,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,engine_dir:${TARGET_ENGINE_PATH},gpu_device_ids:${TARGET_DEVICE_IDS}
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,logits_datatype:TYPE_FP32,triton_backend:tensorrtllm,max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:True,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,engine_dir:${DRAFT_ENGINE_PATH},gpu_device_ids:${DRAFT_DEVICE_IDS}
"""
)
TENSOR_PARALLEL = (
    COPY_MODELS
    + FILL_BLS
    + r"""
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,logits_datatype:TYPE_FP32,triton_backend:tensorrtllm,max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:True,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,engine_dir:${TARGET_ENGINE_PATH}
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,logits_datatype:TYPE_FP32,triton_backend:tensorrtllm,max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:True,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,engine_dir:${DRAFT_ENGINE_PATH}
sed -i 's/\${gpu_device_ids}/'"${DRAFT_DEVICE_IDS}"'/g' ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt
sed -i 's/\${gpu_device_ids}/'"${TARGET_DEVICE_IDS}"'/g' ${TRITON_MODEL_REPO}/tensorrt_llm/config.pbtxt
"""
)
FAST_LOGITS_FILL = (
    COPY_MODELS
    + r"""
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,bls_instance_count:1,accumulate_tokens:False,tensorrt_llm_model_name:${TARGET_MODEL_NAME},logits_datatype:TYPE_FP32,tensorrt_llm_draft_model_name:${DRAFT_MODEL_NAME}
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm/config.pbtxt triton_max_batch_size:4,triton_backend:tensorrtllm,decoupled_mode:False,max_beam_width:1,engine_dir:${TARGET_ENGINE_PATH},max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:True,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,logits_datatype:TYPE_FP32,gpu_device_ids:${TARGET_DEVICE_IDS},participant_ids:2,3,speculative_decoding_fast_logits:1
python3 tools/fill_template.py -i ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt triton_max_batch_size:4,triton_backend:tensorrtllm,decoupled_mode:False,max_beam_width:1,engine_dir:${DRAFT_ENGINE_PATH},max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:True,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,logits_datatype:TYPE_FP32,gpu_device_ids:${DRAFT_DEVICE_IDS},participant_ids:1,speculative_decoding_fast_logits:1
"""
)
FAST_LOGITS_SED = r"""
sed -i 's/\${gpu_device_ids}/'"${DRAFT_DEVICE_IDS}"'/g' ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt
sed -i 's/\${participant_ids}/'"${DRAFT_PARTICIPANT_IDS}"'/g' ${TRITON_MODEL_REPO}/tensorrt_llm_draft/config.pbtxt
sed -i 's/\${gpu_device_ids}/'"${TARGET_DEVICE_IDS}"'/g' ${TRITON_MODEL_REPO}/tensorrt_llm/config.pbtxt
sed -i 's/\${participant_ids}/'"${TARGET_PARTICIPANT_IDS}"'/g' ${TRITON_MODEL_REPO}/tensorrt_llm/config.pbtxt
"""
VARIABLES = {
    "DRAFT_MODEL_NAME": "tensorrt_llm_draft",
    "TARGET_MODEL_NAME": "tensorrt_llm",
    "TRITON_MODEL_REPO": "llama_dtm",
    "HF_MODEL": "/workspace/llama-13b",
    "DRAFT_ENGINE_PATH": "/workspace/engine-draft",
    "TARGET_ENGINE_PATH": "/workspace/engine-target",
    "DRAFT_DEVICE_IDS": "0",
    "TARGET_DEVICE_IDS": "1,2",
    "DRAFT_PARTICIPANT_IDS": "1",
    "TARGET_PARTICIPANT_IDS": "2,3",
}

# A guide for release 0.5.0, whose templates had other variables.
RELEASE_0_5 = r"""
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
"""

# The values of triton_model_repo/; a variable that is not here is filled with nothing, which means its default.
FILLED = {
    "triton_max_batch_size": "256",
    "decoupled_mode": "true",
    "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16",
    "triton_backend": "tensorrtllm",
    "batching_strategy": "inflight_fused_batching",
    "batch_scheduler_policy": "max_utilization",
    "kv_cache_free_gpu_mem_fraction": "0.9",
    "exclude_input_in_output": "true",
    "preprocessing_instance_count": "1",
    "postprocessing_instance_count": "1",
    "bls_instance_count": "1",
    "tensorrt_llm_model_name": "tensorrt_llm",
    **fill_template.DEFAULTS,
}


def unfilled_outside_strings(text):
    """Variables where a number, a word or a truth value has to be; such a file is no protobuf text."""
    return set(re.findall(r"\$\{(\w+)\}", re.sub(r'"[^"]*"|#.*', "", text)))


def parameters(text):
    return dict(re.findall(r'parameters: \{ key: "([^"]+)" value: \{ string_value: "([^"]*)" \} \}', text))


def tensors(text, word):
    block = re.search(rf"^{word} \[\n(.*?)^\]", text, re.M | re.S)[1]
    return set(re.findall(r'name: "(\w+)"', block))


class TemplatesTest(OldTreeTest):
    def config(self, model, repository=MODELS):
        return (self.tree / repository / model / "config.pbtxt").read_text()

    def assert_filled(self, repository):
        models = {folder.name for folder in (self.tree / repository).iterdir()}
        for model in models:
            self.assertEqual(unfilled_outside_strings(self.config(model, repository)), set(), model)
            self.assertIn(f'\nname: "{model}"\n', self.config(model, repository))
            self.assertTrue((self.tree / repository / model / "1").is_dir())
        return models

    def test_the_simple_deployment_fills_every_number(self):
        self.run_lines(SIMPLE, **VARIABLES | {"TARGET_DEVICE_IDS": "1"})
        self.assertEqual(self.assert_filled("llama_dtm"), FIVE_MODELS | {"tensorrt_llm_draft"})
        target = parameters(self.config("tensorrt_llm", "llama_dtm"))
        draft = parameters(self.config("tensorrt_llm_draft", "llama_dtm"))
        self.assertEqual((target["gpu_device_ids"], draft["gpu_device_ids"]), ("1", "0"))
        self.assertEqual(target["gpt_model_path"], "/workspace/engine-target")
        self.assertEqual(draft["gpt_model_path"], "/workspace/engine-draft")
        self.assertEqual(target["gpt_model_type"], "inflight_fused_batching")
        self.assertEqual(target["participant_ids"], "${participant_ids}")
        scripting = parameters(self.config("tensorrt_llm_bls", "llama_dtm"))
        self.assertEqual(scripting["tensorrt_llm_draft_model_name"], "tensorrt_llm_draft")
        self.assertEqual(parameters(self.config("preprocessing", "llama_dtm"))["tokenizer_dir"], "/workspace/llama-13b")

    def test_sed_fills_in_the_devices_of_the_tensor_parallel_deployment(self):
        self.run_lines(TENSOR_PARALLEL, **VARIABLES)
        self.assert_filled("llama_dtm")
        self.assertEqual(parameters(self.config("tensorrt_llm", "llama_dtm"))["gpu_device_ids"], "1,2")
        self.assertEqual(parameters(self.config("tensorrt_llm_draft", "llama_dtm"))["gpu_device_ids"], "0")

    def test_values_with_commas_fill_in_the_fast_logits_deployment_with_and_without_sed(self):
        for lines in (FAST_LOGITS_FILL, FAST_LOGITS_FILL + FAST_LOGITS_SED):
            self.run_lines(lines, **VARIABLES)
            self.assert_filled("llama_dtm")
            target = parameters(self.config("tensorrt_llm", "llama_dtm"))
            draft = parameters(self.config("tensorrt_llm_draft", "llama_dtm"))
            self.assertEqual((target["gpu_device_ids"], target["participant_ids"]), ("1,2", "2,3"))
            self.assertEqual((draft["gpu_device_ids"], draft["participant_ids"]), ("0", "1"))
            self.assertEqual(target["speculative_decoding_fast_logits"], "1")
            self.assertEqual(target["max_beam_width"], "1")

    def test_the_guide_for_0_5_fills_its_variables_and_leaves_those_of_later_releases(self):
        self.run_lines(RELEASE_0_5)
        engine = parameters(self.config("tensorrt_llm"))
        self.assertEqual(engine["gpt_model_path"], "/all_models/inflight_batcher_llm/tensorrt_llm/1")
        self.assertEqual(engine["max_tokens_in_paged_kv_cache"], "")
        self.assertEqual(engine["batch_scheduler_policy"], "guaranteed_completion")
        self.assertEqual(engine["kv_cache_free_gpu_mem_fraction"], "0.2")
        self.assertEqual(engine["max_num_sequences"], "4")
        self.assertIn("decoupled: true", self.config("tensorrt_llm"))
        for model in ("preprocessing", "postprocessing"):
            self.assertEqual(parameters(self.config(model))["tokenizer_type"], "llama")
            self.assertEqual(parameters(self.config(model))["tokenizer_dir"], "NousResearch/Llama-2-7b-hf")
        # Triton refuses such files; the server here takes the defaults and says so.
        left = {model: unfilled_outside_strings(self.config(model)) for model in FIVE_MODELS}
        self.assertEqual(
            left,
            {
                "ensemble": {"triton_max_batch_size", "logits_datatype"},
                "preprocessing": {"triton_max_batch_size", "preprocessing_instance_count"},
                "tensorrt_llm": {
                    "triton_max_batch_size",
                    "logits_datatype",
                    "encoder_input_features_data_type",
                },
                "postprocessing": {"triton_max_batch_size", "postprocessing_instance_count"},
                "tensorrt_llm_bls": {
                    "triton_max_batch_size",
                    "decoupled_mode",
                    "bls_instance_count",
                    "logits_datatype",
                },
            },
        )

    def test_the_filled_repository_is_the_templates_with_its_values(self):
        for model in FIVE_MODELS:
            template = self.config(model)
            values = dict.fromkeys(fill_template.variables_of(template), "") | FILLED
            self.assertEqual(self.config(model, "triton_model_repo"), fill_template.fill(template, values), model)
        self.assertEqual(self.assert_filled("triton_model_repo"), FIVE_MODELS)
        self.assertNotIn("$", "".join(self.config(model, "triton_model_repo") for model in FIVE_MODELS))

    def test_an_engine_can_be_copied_into_the_version_folder(self):
        engine = self.tree / "engine"
        engine.mkdir()
        (engine / "rank0.engine").touch()
        self.run_lines(
            "cd triton_model_repo\ncp -r ${trt_engine_path}/* ./tensorrt_llm/1", trt_engine_path=str(engine)
        )
        self.assertTrue((self.tree / "triton_model_repo/tensorrt_llm/1/rank0.engine").exists())

    def test_the_ensemble_wires_tensors_that_its_models_have(self):
        text = self.config("ensemble")
        inputs, outputs = tensors(text, "input"), tensors(text, "output")
        made = set(inputs)
        used = set()
        for step in re.split(r"\n    \{\n", text.split("ensemble_scheduling")[1])[1:]:
            model = re.search(r'model_name: "(\w+)"', step)[1]
            config = self.config(model)
            for word, side in (("input", "input_map"), ("output", "output_map")):
                pairs = re.findall(rf'{side} \{{ key: "(\w+)" value: "(\w+)" \}}', step)
                names = [name for name, _ in pairs]
                self.assertEqual(len(names), len(set(names)), model)
                self.assertLessEqual(set(names), tensors(config, word), model)
                if word == "input":
                    required = set(re.findall(r'name: "(\w+)" data_type: \S+ dims: \[[^]]*\] \}', input_block(config)))
                    self.assertLessEqual(required, set(names), f"{model}: inputs that are not optional")
                    self.assertLessEqual({value for _, value in pairs}, made, f"{model}: made by no step before")
                    used |= {value for _, value in pairs}
                else:
                    self.assertEqual({value for _, value in pairs} & made, set(), f"{model}: made twice")
                    made |= {value for _, value in pairs}
        self.assertLessEqual(outputs, made)
        self.assertEqual(inputs - used, set(), "inputs that no step reads")
        self.assertEqual({name for name in made - inputs - outputs if not name.startswith("_")}, set())

    def test_bls_has_every_tensor_of_the_ensemble(self):
        ensemble, scripting = self.config("ensemble"), self.config("tensorrt_llm_bls")
        self.assertLessEqual(tensors(ensemble, "input"), tensors(scripting, "input"))
        self.assertEqual(tensors(ensemble, "output"), tensors(scripting, "output"))
        self.assertLessEqual({"num_draft_tokens", "use_draft_logits"}, tensors(scripting, "input"))

    def test_output_ids_is_the_first_output(self):
        self.assertRegex(self.config("tensorrt_llm"), r'\noutput \[\n  \{ name: "output_ids"')


def input_block(text):
    return re.search(r"^input \[\n(.*?)^\]", text, re.M | re.S)[1]


try:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2
except ImportError:
    text_format = None


@unittest.skipUnless(text_format, "tritonclient is not installed")
class ProtobufTest(OldTreeTest):
    def test_filled_files_are_model_configs_by_tritons_own_definition(self):
        self.run_lines(FAST_LOGITS_FILL, **VARIABLES)
        for repository in ("llama_dtm", "triton_model_repo"):
            for folder in (self.tree / repository).iterdir():
                config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
                self.assertEqual(config.name, folder.name)


if __name__ == "__main__":
    unittest.main()
