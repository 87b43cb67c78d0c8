"""boto3's client of SageMaker's endpoints against a real server, through the mapping that SageMaker's runtime makes.

    tools/test_python --with clients tests/clients/sagemaker_test.py build/dev/tandem
"""

import binascii
import http.client
import http.server
import json
import re
import struct
import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from harness import QUESTION, ServerTest, answer_key

ANSWER = answer_key()["tandem"]


def event(payload):
    """A message of AWS' event streams that carries a part of a body."""
    headers = b""
    for name, value in ((":message-type", "event"), (":event-type", "PayloadPart"), (":content-type", "application/octet-stream")):
        headers += struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", binascii.crc32(message))


class Runtime(http.server.BaseHTTPRequestHandler):
    """What SageMaker's runtime does: /endpoints/NAME/invocations[-response-stream] → the container's /invocations."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kept = {name: value for name, value in self.headers.items() if name.lower().startswith(("content-type", "accept", "x-amzn-sagemaker"))}
        container = http.client.HTTPConnection("127.0.0.1", self.server.container, timeout=120)
        container.request("POST", "/invocations", body, kept)
        reply = container.getresponse()
        is_stream = re.fullmatch("/endpoints/[^/]+/invocations-response-stream", self.path) and reply.status == 200
        parts = iter(lambda: reply.read1(65536), b"") if is_stream else [reply.read()]
        if reply.status != 200:  # as ModelError
            parts = [json.dumps({"Message": parts[0].decode(), "OriginalStatusCode": reply.status, "OriginalMessage": parts[0].decode()}).encode()]
        self.send_response(424 if reply.status != 200 else 200)
        if reply.status != 200:
            self.send_header("x-amzn-errortype", "ModelError")
        self.send_header("X-Amzn-SageMaker-Content-Type" if is_stream else "Content-Type", reply.headers["Content-Type"])
        self.send_header("x-amzn-RequestId", reply.headers["X-Request-Id"])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            data = event(part) if is_stream else part
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        container.close()

    def log_message(self, *_):
        pass


class SageMaker(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runtime = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Runtime)
        cls.runtime.container = cls.server.port
        threading.Thread(target=cls.runtime.serve_forever, daemon=True).start()
        cls.client = boto3.client(
            "sagemaker-runtime",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{cls.runtime.server_port}",
            aws_access_key_id="none",
            aws_secret_access_key="none",
            config=Config(retries={"max_attempts": 0}, proxies={}),
        )

    @classmethod
    def tearDownClass(cls):
        cls.runtime.shutdown()
        cls.runtime.server_close()
        super().tearDownClass()

    def ask(self, call, body, **options):
        return call(EndpointName="lmi", ContentType="application/json", Body=json.dumps(body), **options)

    def test_invoke_endpoint(self):
        body = {"inputs": QUESTION, "parameters": {"max_new_tokens": 128, "do_sample": True, "seed": 3, "temperature": 0.01}}
        reply = self.ask(self.client.invoke_endpoint, body, InferenceId="abc-123")
        self.assertEqual(reply["ContentType"], "application/json")
        self.assertEqual(json.loads(reply["Body"].read())["generated_text"].strip(), ANSWER)
        self.assertEqual(reply["ResponseMetadata"]["RequestId"], "abc-123")

    def test_invoke_endpoint_with_response_stream(self):
        body = {"inputs": QUESTION, "parameters": {"max_new_tokens": 128, "details": True}, "stream": True}
        reply = self.ask(self.client.invoke_endpoint_with_response_stream, body)
        self.assertEqual(reply["ContentType"], "application/jsonlines")
        text = b"".join(part["PayloadPart"]["Bytes"] for part in reply["Body"])
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(lines[-1]["generated_text"].strip(), ANSWER)
        self.assertEqual("".join(line["token"].get("text", "") for line in lines), lines[-1]["generated_text"])

    def test_errors_are_the_models(self):
        with self.assertRaises(ClientError) as caught:
            self.ask(self.client.invoke_endpoint, {"inputs": ""})
        self.assertIn("inputs: must not be empty", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
