"""A server for the tests of the clients: the five models over a toy language, by gRPC and HTTP on ports of the system.

A token is a byte of the text. After a letter comes the next one of the alphabet; after "z", and after 100 tokens, the
model ends. The draft is wrong at every third position.
"""

import contextlib
import http.server
import json
import queue
import threading
from concurrent import futures

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

END = 256
VOCABULARY = 257


class Refused(Exception):
    pass


def next_token(tokens, is_draft):
    last = tokens[-1]
    if last == ord("z"):
        return END
    if is_draft and len(tokens) % 3 == 0:
        return ord("#")
    return last + 1 if ord("a") <= last < ord("z") else ord("a")


def new_tokens(tokens, count, drafted, is_draft=False):
    """At most `count` tokens; after drafted ones, those that are accepted and one more."""
    made = []
    while len(made) < count:
        token = next_token(tokens + made, is_draft)
        if token == END:
            break
        made.append(token)
        if drafted and (len(made) > len(drafted) or token != drafted[len(made) - 1]):
            break
    return made


def integers(values, *shape):
    return np.array(values, np.int32).reshape(shape)


class FakeTriton:
    """`with FakeTriton() as server:` then `server.grpc_url`, `server.http_url` and `server.requests`."""

    def __init__(self, decoupled=(), queue=None):
        self.decoupled = decoupled
        self.requests = []  # (model, tensors, parameters, id)
        self.stopped = threading.Event()
        self._queue = threading.Semaphore(queue) if queue else None

    # The models. Each yields dictionaries of tensors.

    def answers(self, model, tensors):
        if model in ("ensemble", "tensorrt_llm_bls"):
            return self.text_model(tensors)
        return getattr(self, model.removesuffix("_draft"))(tensors, **self.options(model))

    @staticmethod
    def options(model):
        return {"is_draft": model.endswith("_draft")} if model.startswith("tensorrt_llm") else {}

    def preprocessing(self, tensors):
        rows = [list(text) for text in tensors["QUERY"].flatten()]
        width = max(map(len, rows))
        words = [word for word in tensors.get("STOP_WORDS_DICT", np.array([])).flatten() if word]
        ends = np.cumsum([len(word) for word in words])
        flat = list(b"".join(words))
        lists = np.empty([len(rows), 2, len(flat)], np.int32)
        lists[:, 0], lists[:, 1] = flat, list(ends) + [-1] * (len(flat) - len(ends))
        yield {
            "INPUT_ID": integers([row + [0] * (width - len(row)) for row in rows], len(rows), width),
            "REQUEST_INPUT_LEN": integers([len(row) for row in rows], len(rows), 1),
            "DECODER_INPUT_ID": integers([0] * len(rows), len(rows), 1),
            "REQUEST_DECODER_INPUT_LEN": integers([1] * len(rows), len(rows), 1),
            "BAD_WORDS_IDS": np.zeros([len(rows), 2, 0], np.int32),
            "STOP_WORDS_IDS": lists,
            "EMBEDDING_BIAS": np.zeros([len(rows), 0], np.float32),
            "REQUEST_OUTPUT_LEN": tensors["REQUEST_OUTPUT_LEN"],
            "OUT_END_ID": tensors.get("END_ID", integers([END] * len(rows), len(rows), 1)),
            "OUT_PAD_ID": tensors.get("PAD_ID", integers([0] * len(rows), len(rows), 1)),
        }

    def postprocessing(self, tensors):
        rows = tensors["TOKENS_BATCH"].reshape(-1, tensors["TOKENS_BATCH"].shape[-1])
        lengths = tensors["SEQUENCE_LENGTH"].flatten()
        texts = [bytes(row[:length].tolist()) for row, length in zip(rows, lengths)]
        yield {"OUTPUT": np.array(texts, object)}

    def tensorrt_llm(self, tensors, is_draft):
        if tensors.get("stop", np.array([False])).any():
            self.stopped.set()
            yield {}
            return
        prompt = tensors["input_ids"][0].tolist()
        if max(prompt) >= VOCABULARY:  # random tokens
            prompt = [token % 256 for token in prompt]
        drafted = tensors.get("draft_input_ids", np.array([[]]))[0].tolist()
        count = int(tensors["request_output_len"].flat[0])
        if tensors.get("streaming", np.array([False])).any():
            for step, token in enumerate(new_tokens(prompt, count, [])):
                if step == 2 and count == 1000:  # the long request waits for its stop
                    self.stopped.wait(30)
                    return
                yield {"output_ids": integers([token], 1, 1, 1), "sequence_length": integers([1], 1, 1)}
            return
        made = new_tokens(prompt, count, drafted, is_draft)
        kept = [] if tensors.get("exclude_input_in_output", np.array([False])).any() else prompt
        answer = {
            "output_ids": integers(kept + made, 1, 1, -1),
            "sequence_length": integers([len(kept + made)], 1, 1),
        }
        if tensors.get("return_generation_logits", np.array([False])).any():
            answer["generation_logits"] = np.eye(VOCABULARY, dtype=np.float32)[made].reshape(1, 1, len(made), -1)
        if tensors.get("return_log_probs", np.array([False])).any():
            answer["cum_log_probs"] = np.zeros([1, 1], np.float32)
            answer["output_log_probs"] = np.zeros([1, 1, len(made)], np.float32)
        yield answer

    def text_model(self, tensors):
        for row, text in enumerate(tensors["text_input"].flatten()):
            made = new_tokens(list(text), int(tensors["max_tokens"].flat[0]), [])
            kept = b"" if tensors.get("exclude_input_in_output", np.array([False])).any() else text
            texts = [bytes([token]) for token in made] if tensors["stream"].any() else [kept + bytes(made)]
            for part in texts:
                answer = {"text_output": np.array([part], object), "batch_index": integers([row], 1, 1)}
                if tensors.get("return_log_probs", np.array([False])).any():
                    answer["cum_log_probs"] = np.zeros([1, 1], np.float32)
                    answer["output_log_probs"] = np.zeros([1, 1, len(made)], np.float32)
                if len(tensors["text_input"]) == 1:
                    del answer["batch_index"]
                yield answer

    def ask(self, model, tensors, parameters, request_id, outputs):
        """The answers, with the tensors that were asked for; a full queue refuses."""
        self.requests.append((model, tensors, parameters, request_id))
        if self._queue and model == "tensorrt_llm" and not self._queue.acquire(blocking=False):
            raise Refused("inference request Exceeds maximum queue size; Maximum queue size of 2 is reached")
        for answer in self.answers(model, tensors):
            yield {name: array for name, array in answer.items() if not outputs or name in outputs}

    def sent(self, model):
        return [tensors for name, tensors, _, _ in self.requests if name == model]

    # The doors.

    def __enter__(self):
        self._grpc = grpc.server(futures.ThreadPoolExecutor(64))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(GrpcDoor(self), self._grpc)
        self.grpc_url = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.start()
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HttpDoor)
        self._http.fake = self
        self._http.daemon_threads = True
        self.http_url = f"127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self._grpc.stop(None).wait()
        self._http.shutdown()
        self._http.server_close()


def from_bytes(data, datatype, shape):
    array = deserialize_bytes_tensor(data) if datatype == "BYTES" else np.frombuffer(data, triton_to_np_dtype(datatype))
    return array.reshape(shape)


def to_bytes(array):
    if array.dtype == object:
        return serialize_byte_tensor(array).item() if array.size else b""
    return array.tobytes()


class GrpcDoor(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, fake):
        self.fake = fake

    def answers(self, request):
        raw = zip(request.inputs, request.raw_input_contents, strict=True)
        tensors = {tensor.name: from_bytes(data, tensor.datatype, list(tensor.shape)) for tensor, data in raw}
        outputs = [output.name for output in request.outputs]
        for tensors in self.fake.ask(request.model_name, tensors, dict(request.parameters), request.id, outputs):
            response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
            for name, array in tensors.items():
                response.outputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
                response.raw_output_contents.append(to_bytes(array))
            yield response

    def ModelInfer(self, request, context):
        if request.model_name in self.fake.decoupled:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support decoupled models")
        try:
            return next(self.answers(request))
        except Refused as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def ModelStreamInfer(self, requests, context):
        """Requests run beside each other; a decoupled model marks the end of a request by an empty response."""
        made = queue.SimpleQueue()

        def collect(request):
            try:
                responses = list(self.answers(request))
                if request.model_name in self.fake.decoupled or not responses:
                    responses.append(pb.ModelInferResponse(model_name=request.model_name, id=request.id))
                responses[-1].parameters["triton_final_response"].bool_param = True
                for response in responses:
                    made.put(pb.ModelStreamInferResponse(infer_response=response))
            except Exception as error:  # whatever it is, the client gets to know it
                made.put(pb.ModelStreamInferResponse(error_message=repr(error)))

        def read():
            with contextlib.suppress(grpc.RpcError), futures.ThreadPoolExecutor() as pool:
                for request in requests:
                    pool.submit(collect, request)
            made.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield from iter(made.get, None)


class HttpDoor(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        length = int(self.headers.get("Inference-Header-Content-Length", len(body)))
        request, data = json.loads(body[:length]), body[length:]
        tensors = {}
        for tensor in request["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            tensors[tensor["name"]] = from_bytes(data[:size], tensor["datatype"], tensor["shape"])
            data = data[size:]
        model = self.path.split("/")[3]
        outputs = [output["name"] for output in request.get("outputs", [])]
        try:
            answer = next(self.server.fake.ask(model, tensors, {}, request.get("id", ""), outputs))
        except Refused as error:
            return self.reply(503, json.dumps({"error": str(error)}).encode())
        parts, described = [], []
        for name, array in answer.items():
            parts.append(to_bytes(array))
            described.append(
                {
                    "name": name,
                    "datatype": np_to_triton_dtype(array.dtype),
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": len(parts[-1])},
                }
            )
        header = json.dumps({"id": request.get("id", ""), "model_name": model, "outputs": described}).encode()
        self.reply(200, header + b"".join(parts), len(header))

    def reply(self, status, body, header_length=None):
        self.send_response(status)
        if header_length is not None:
            self.send_header("Inference-Header-Content-Length", str(header_length))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
