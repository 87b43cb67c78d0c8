"""What a server does for safety without being asked: TLS, keys that no log shows, web pages of other origins, and no connection to
anyone. Standard library only.

    python3 tests/e2e/safety_test.py build/dev/tandem
"""

import contextlib
import http.client
import json
import socket
import ssl
import tempfile
import time
import unittest

from harness import QUESTION, REPOSITORY, Server, ServerTest, tandem

TLS = REPOSITORY / "tests/data/tls"
CERTIFICATE = ("--tls_cert_file", TLS / "certificate.pem")
KEY = ("--tls_key_file", TLS / "key.pem")


class Https(ServerTest):
    arguments = (*CERTIFICATE, *KEY)

    def https(self, **limits):
        trusted = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
        for name, value in limits.items():
            setattr(trusted, name, value)
        return http.client.HTTPSConnection("localhost", self.server.port, timeout=60, context=trusted)

    def test_answers_and_streams(self):
        body = {"prompt": QUESTION, "max_tokens": 30, "temperature": 0}
        with contextlib.closing(self.https()) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body))
            whole = json.loads(connection.getresponse().read())["choices"][0]["text"]
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
            lines = connection.getresponse().read().decode().split("\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), whole)

    def test_both_versions_of_today_are_spoken(self):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with contextlib.closing(self.https(minimum_version=version, maximum_version=version)) as connection:
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().status, 200)

    def test_plain_http_is_told_so(self):
        status, _, text = self.server.request("GET", "/v1/models")
        self.assertEqual(status, 400)
        self.assertIn("https://", json.loads(text)["error"]["message"])

    def test_handshakes_that_never_end_hold_up_nobody(self):
        slow = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(300)]
        try:
            start = time.monotonic()
            with contextlib.closing(self.https()) as connection:
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().status, 200)
            self.assertLess(time.monotonic() - start, 2)
        finally:
            for connection in slow:
                connection.close()


class CertificatesAtStart(unittest.TestCase):
    def test_what_is_wrong_is_named_before_a_model_is_loaded(self):
        for arguments, problem in [
            (CERTIFICATE, "both a certificate and its key"),
            ((*CERTIFICATE, "--tls_key_file", TLS / "certificate.pem"), "certificate.pem: is no private key"),
            (("--tls_cert_file", TLS / "key.pem", *KEY), "key.pem: is no certificate"),
            (("--tls_cert_file", TLS / "absent.pem", *KEY), "absent.pem"),
            (("--cors_origins", "chat.example"), "--cors_origins"),
        ]:
            done = tandem("serve", "no/such/model", "--port", "0", *arguments, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(problem, done.stderr)


class Keys(unittest.TestCase):
    def test_no_log_shows_one(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("sk-first-secret\nsk-second-secret\n")
            file.flush()
            server = Server("--api_key_file", file.name, "--log-verbose=1")
            try:
                for key, wanted in (("sk-first-secret", 200), ("sk-second-secret", 200), ("sk-wrong-secret", 401)):
                    headers = {"Authorization": f"Bearer {key}"}
                    for method, path, body in [
                        ("GET", "/v1/models", None),
                        ("GET", f"/v1/models?api_key={key}", None),
                        ("GET", "/metrics", None),
                        ("POST", "/v1/completions", {"prompt": QUESTION, "max_tokens": 2}),
                    ]:
                        status, _, text = server.request(method, path, body, headers)
                        self.assertEqual(status, wanted, path)
                        self.assertNotIn("secret", text)
                self.assertEqual(server.request("POST", "/v1/completions", "{", {"Authorization": "Basic sk-first-secret"})[0], 401)
            finally:
                self.assertEqual(server.stop(), 0)
            self.assertNotIn("secret", "".join(server.lines))


class Origins(ServerTest):
    arguments = ("--cors_origins", "https://chat.example")

    def test_a_named_page_may_ask_and_read(self):
        question = {
            "Origin": "https://chat.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        }
        status, headers, _ = self.server.request("OPTIONS", "/v1/chat/completions", None, question)
        self.assertEqual(status, 200)
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://chat.example")
        self.assertEqual(headers["Access-Control-Allow-Methods"], "POST")
        self.assertEqual(headers["Access-Control-Allow-Headers"], question["Access-Control-Request-Headers"])
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 2, "stream": True}
        status, headers, _ = self.server.request("POST", "/v1/chat/completions", body, {"Origin": "https://chat.example"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://chat.example"))

    def test_others_may_not(self):
        status, headers, _ = self.server.request("POST", "/v1/completions", {"prompt": "x"}, {"Origin": "https://evil.example"})
        self.assertEqual(status, 403)
        self.assertNotIn("Access-Control-Allow-Origin", headers)


class Outbound(ServerTest):
    def test_no_address_in_a_request_is_visited(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(1)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
            image = {"type": "image_url", "image_url": {"url": url}}
            for body in [
                {"messages": [{"role": "user", "content": [image]}]},
                {"messages": [{"role": "user", "content": url}], "max_tokens": 2},
                {"messages": [{"role": "user", "content": "x"}], "guided_json": {"$ref": url}, "max_tokens": 2},
                {"messages": [{"role": "user", "content": "x"}], "guided_json": {"$schema": url, "$id": url}, "max_tokens": 2},
                {"model": url, "messages": [{"role": "user", "content": "x"}]},
            ]:
                self.server.request("POST", "/v1/chat/completions", body)
            self.server.request("POST", "/v2/repository/models/x/load", {"parameters": {"config": url}})
            with self.assertRaises(TimeoutError):
                listener.accept()


if __name__ == "__main__":
    unittest.main()
