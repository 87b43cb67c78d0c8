"""Shared by the clients: connections that speak in NumPy arrays by tensor name, and the values that tensors hold.

Needs numpy and tritonclient[grpc,http].
"""

import argparse
import importlib
import queue
import sys
from contextlib import contextmanager

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


class Parser(argparse.ArgumentParser):
    """Takes `--output_len` for `--output-len`: the clients of release 0.5 had underscores."""

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse_args(self, args=None, namespace=None):
        def with_hyphens(word):
            name, equals, value = word.partition("=")
            return name.replace("_", "-") + equals + value if name.startswith("--") else word

        return super().parse_args([with_hyphens(word) for word in (sys.argv[1:] if args is None else args)], namespace)


def many(values, dtype, rows=1):
    """The same values in each row, [rows, n]; n may be 0. Text has the dtype object."""
    array = np.empty([rows, len(values)], dtype)
    array[:] = np.array([value.encode() if isinstance(value, str) else value for value in values], dtype)
    return array


def one(value, dtype, rows=1):
    """One value in each row, [rows, 1]."""
    return many([value], dtype, rows)


def given(rows=1, **tensors):
    """Tensors of one value a row, `name=(value, dtype)`, without those that are None."""
    return {name: one(value, dtype, rows) for name, (value, dtype) in tensors.items() if value is not None}


class Answer:
    """One response: its id, its tensors in the order of the server, and whether it is the last of its request."""

    def __init__(self, result):
        response = result.get_response()
        if isinstance(response, dict):  # HTTP
            self.id = response.get("id", "")
            names = [output["name"] for output in response.get("outputs", [])]
            self.is_last = True
        else:
            self.id = response.id
            names = [output.name for output in response.outputs]
            self.is_last = response.parameters["triton_final_response"].bool_param
        self.tensors = {name: result.as_numpy(name) for name in names}

    def texts(self, name):
        return [text.decode(errors="replace") for text in self.tensors[name].flatten()]


class Stream:
    """Requests and answers of one bidirectional call; iterating yields answers until the caller has enough."""

    def __init__(self, client):
        self._client = client
        self._answers = client.answers

    def send(self, model, tensors, outputs=(), request_id="", parameters=None):
        self._client.grpc.async_stream_infer(
            model,
            self._client.inputs(tensors),
            outputs=self._client.requested(outputs),
            request_id=request_id,
            enable_empty_final_response=True,
            parameters=parameters,
        )

    def cancel(self):
        """Cancels all requests of the stream, which ends."""
        self._client.grpc.stop_stream(cancel_requests=True)

    def __iter__(self):
        while True:
            result, error = self._answers.get()
            if error is not None:
                raise error
            yield Answer(result)


class Client:
    """One connection. Not for several threads at once."""

    def __init__(self, url, protocol="grpc", verbose=False, compression=None, stream_timeout=None, **secure):
        self._module = importlib.import_module(f"tritonclient.{protocol}")
        self._connection = self._module.InferenceServerClient(url, verbose=verbose, **secure)
        self._compression = compression
        self._stream_timeout = stream_timeout
        self.protocol = protocol
        self.answers = None

    @property
    def grpc(self):
        if self.protocol != "grpc":
            raise InferenceServerException("streaming needs gRPC")
        return self._connection

    def inputs(self, tensors):
        made = []
        for name, array in tensors.items():
            tensor = self._module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            made.append(tensor)
        return made

    def requested(self, names):
        return [self._module.InferRequestedOutput(name) for name in names] or None

    def infer(self, model, tensors, outputs=(), request_id="", parameters=None):
        """The one answer of a model that is not decoupled."""
        options = {"parameters": parameters} if parameters else {}
        if self.protocol == "grpc":
            options["compression_algorithm"] = self._compression
        return Answer(
            self._connection.infer(
                model, self.inputs(tensors), outputs=self.requested(outputs), request_id=request_id, **options
            )
        )

    @contextmanager
    def stream(self):
        self.answers = queue.SimpleQueue()
        self.grpc.start_stream(
            callback=lambda result, error, answers=self.answers: answers.put((result, error)),
            stream_timeout=self._stream_timeout,
            compression_algorithm=self._compression,
        )
        try:
            yield Stream(self)
        finally:
            self.grpc.stop_stream(cancel_requests=True)

    def stream_infer(self, model, tensors, outputs=(), request_id="", parameters=None):
        """Yields the answers of one request, of a model that may be decoupled; an empty last answer is left out."""
        with self.stream() as stream:
            stream.send(model, tensors, outputs, request_id, parameters)
            for answer in stream:
                if answer.tensors:
                    yield answer
                if answer.is_last:
                    return

    def close(self):
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def tokenize(client, texts, max_tokens=1, model="preprocessing", end_id=None, pad_id=None, words=None):
    """The answer of the server's tokenizer for a batch; `words`: BAD_WORDS_DICT and STOP_WORDS_DICT."""
    rows = len(texts)
    tensors = {
        "QUERY": np.array([[text.encode()] for text in texts], object),
        "REQUEST_OUTPUT_LEN": one(max_tokens, np.int32, rows),
        **given(rows, END_ID=(end_id, np.int32), PAD_ID=(pad_id, np.int32)),
        **{name: many(list_, object, rows) for name, list_ in (words or {}).items() if list_},
    }
    return client.infer(model, tensors).tensors


def detokenize(client, tokens, model="postprocessing"):
    """The text of one row of tokens."""
    tensors = {
        "TOKENS_BATCH": np.array(tokens, np.int32).reshape(1, 1, -1),
        "SEQUENCE_LENGTH": one(len(tokens), np.int32),
    }
    return client.infer(model, tensors).texts("OUTPUT")[0]


def adapter(folder):
    """The tensors of a LoRA adapter, from the two files that hf_lora_convert writes."""
    return {
        "lora_weights": np.load(f"{folder}/model.lora_weights.npy"),
        "lora_config": np.load(f"{folder}/model.lora_config.npy"),
    }


def add_secure_flags(parser):
    """TLS, compression and the time limit of gRPC connections."""
    add = parser.add_argument
    add("-s", "--ssl", action="store_true", help="use TLS")
    add("-r", "--root-certificates", help="PEM file with the roots to trust")
    add("-p", "--private-key", help="PEM file with the client's key")
    add("-x", "--certificate-chain", help="PEM file with the client's certificates")
    add("-C", "--grpc-compression-algorithm", choices=["deflate", "gzip"], help="compress requests")
    add("-t", "--stream-timeout", type=float, help="seconds that a stream may take")


def secure_client(options):
    return Client(
        options.url,
        verbose=options.verbose,
        compression=options.grpc_compression_algorithm,
        stream_timeout=options.stream_timeout,
        ssl=options.ssl,
        root_certificates=options.root_certificates,
        private_key=options.private_key,
        certificate_chain=options.certificate_chain,
    )


def run(main):
    """Ends the program with main's result; an error of the server is one line."""
    try:
        sys.exit(main())
    except InferenceServerException as error:
        sys.exit(f"error: {error.message()}")
