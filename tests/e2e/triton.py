"""Shared by the tests with Triton's own client: model repositories of the embedded pair, a server on one, requests to it.

tools/test_python runs them, with numpy and tritonclient[grpc,http].
"""

import queue
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from harness import REPOSITORY, Server
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PAIR = REPOSITORY / "models/dictionary"
COMPAT = REPOSITORY / "compat"
TARGET, DRAFT = "tensorrt_llm", "tensorrt_llm_draft"


def fill(model, **values):
    substitutions = ",".join(f"{name}:{value}" for name, value in values.items())
    subprocess.run(
        [sys.executable, COMPAT / "tools/fill_template.py", "-i", model / "config.pbtxt", substitutions],
        check=True,
        capture_output=True,
    )


def make_repository(folder, decoupled=False, bls_decoupled=None, draft=True, batch=4, **engine):
    """The five models and, with `draft`, a sixth, from the templates; `engine` fills further variables of tensorrt_llm."""
    shutil.copytree(COMPAT / "all_models/inflight_batcher_llm", folder)
    batch = {"triton_max_batch_size": batch}
    fill(folder / "ensemble", **batch, logits_datatype="TYPE_FP32")
    for stage in ("preprocessing", "postprocessing"):
        fill(folder / stage, **batch, tokenizer_dir=PAIR / "target", **{f"{stage}_instance_count": 1})
    fill(
        folder / "tensorrt_llm_bls",
        **batch,
        decoupled_mode=decoupled if bls_decoupled is None else bls_decoupled,
        logits_datatype="TYPE_FP32",
        bls_instance_count=1,
        tensorrt_llm_model_name=TARGET,
        **({"tensorrt_llm_draft_model_name": DRAFT} if draft else {}),
    )
    shutil.copytree(folder / TARGET, folder / DRAFT)
    config = folder / DRAFT / "config.pbtxt"
    config.write_text(config.read_text().replace(f'name: "{TARGET}"', f'name: "{DRAFT}"'))
    for model, weights in ((TARGET, "target"), (DRAFT, "draft")):
        fill(
            folder / model,
            **batch,
            decoupled_mode=decoupled,
            logits_datatype="TYPE_FP32",
            encoder_input_features_data_type="TYPE_FP16",
            triton_backend="tensorrtllm",
            batching_strategy="inflight_fused_batching",
            engine_dir=PAIR / weights,
            **{"kv_cache_free_gpu_mem_fraction": 0.1, "enable_kv_cache_reuse": True, **engine},
        )
    if not draft:
        shutil.rmtree(folder / DRAFT)
    return folder


class TritonServer(Server):
    """`tandem serve` on a model repository, with its gRPC and metrics ports."""

    def __init__(self, repository, *arguments):
        super().__init__("--model_repo", repository, "--grpc_port", 0, "--metrics_port", 0, *arguments)
        shown = "".join(self.lines)
        self.grpc_port, self.metrics_port = (
            int(re.search(rf"Started {service} at 127\.0\.0\.1:(\d+)", shown)[1])
            for service in ("GRPCInferenceService", "Metrics Service")
        )
        self.http_url, self.grpc_url = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.grpc_port}"

    def blocks_in_use(self):
        return self.metric('tandem_kv_blocks{state="referenced"}')


def tensors(protocol, values, binary=True):
    """InferInputs of a dictionary from names to arrays."""
    made = []
    for name, value in values.items():
        made.append(protocol.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
        if protocol is tritonclient.http:
            made[-1].set_data_from_numpy(value, binary_data=binary)
        else:
            made[-1].set_data_from_numpy(value)
    return made


def named(protocol, names, binary=True):
    if names is None:
        return None
    if protocol is tritonclient.http:
        return [protocol.InferRequestedOutput(name, binary_data=binary) for name in names]
    return [protocol.InferRequestedOutput(name) for name in names]


def texts(*rows):
    """A BYTES tensor [rows, 1]."""
    return np.array([[row.encode()] for row in rows], object)


def row(value, dtype):
    """A tensor [1, 1]."""
    return np.array([[value]], dtype)


def question(text, max_tokens=20, **more):
    """The inputs of a text model."""
    return {"text_input": texts(text), "max_tokens": row(max_tokens, np.int32), **more}


def token_request(tokens, max_tokens=8, **more):
    """The inputs of a raw model."""
    return {
        "input_ids": np.array([tokens], np.int32),
        "input_lengths": row(len(tokens), np.int32),
        "request_output_len": row(max_tokens, np.int32),
        **more,
    }


class Stream:
    """A bidirectional stream; `next` gives the responses in their order, and raises those that are errors."""

    def __init__(self, client):
        self.client = client
        self.responses = queue.Queue()
        client.start_stream(lambda result, error: self.responses.put(error or result))

    def send(self, model, values, outputs=None, **more):
        protocol = tritonclient.grpc
        self.client.async_stream_infer(model, tensors(protocol, values), outputs=named(protocol, outputs), **more)

    def next(self):
        response = self.responses.get(timeout=60)
        if isinstance(response, Exception):
            raise response
        return response

    def until_final(self):
        found = []
        while True:
            found.append(self.next())
            if is_final(found[-1]):
                return found

    def stop(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


class TritonTest(unittest.TestCase):
    """Tests that share one server; `repository` are the arguments of make_repository."""

    repository = {}
    arguments = ()

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.server = TritonServer(make_repository(cls.folder / "repository", **cls.repository), *cls.arguments)
        cls.addClassCleanup(cls.end)

    @classmethod
    def end(cls):
        code = cls.server.stop()
        assert code == 0, f"the server ended with {code}:\n{''.join(cls.server.lines)}"

    def setUp(self):
        self.grpc = self.enterContext(tritonclient.grpc.InferenceServerClient(self.server.grpc_url))
        self.http = self.enterContext(tritonclient.http.InferenceServerClient(self.server.http_url))

    def infer(self, model, values, outputs=None, **more):
        """One response over gRPC."""
        protocol = tritonclient.grpc
        return self.grpc.infer(model, tensors(protocol, values), outputs=named(protocol, outputs), client_timeout=60, **more)

    def http_infer(self, model, values, outputs=None, binary=True, **more):
        protocol = tritonclient.http
        return self.http.infer(
            model, tensors(protocol, values, binary), outputs=named(protocol, outputs, binary), **more
        )

    def stream(self):
        stream = Stream(self.grpc)
        self.addCleanup(stream.stop)
        return stream

    def tokens(self, text):
        """The ids of a text."""
        answer = self.infer("preprocessing", {"QUERY": texts(text), "REQUEST_OUTPUT_LEN": row(1, np.int32)})
        return answer.as_numpy("INPUT_ID")[0].tolist()

    def refused(self, call, *arguments, **more):
        with self.assertRaises(InferenceServerException) as refusal:
            call(*arguments, **more)
        return refusal.exception

    def run_client(self, path, *arguments, code=0):
        """The output of a client under compat/."""
        done = subprocess.run(
            [sys.executable, COMPAT / path, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout


def names(response):
    """The outputs of a response over gRPC, in their order."""
    return [output.name for output in response.get_response().outputs]
