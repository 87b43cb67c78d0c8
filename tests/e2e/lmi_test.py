"""djl-serving's routes as its own clients ask them: bodies, formatters, chats, lists, limits, management, the end."""

import concurrent.futures
import contextlib
import http.client
import json
import threading
import time
import unittest

from harness import QUESTION, REPOSITORY, Server, ServerTest, answer_key

PAIR = REPOSITORY / "models/dictionary"
ANSWER = answer_key()["tandem"]


def invoke(server, body, path="/invocations", headers=None):
    return server.request("POST", path, body, headers)


class Invocations(ServerTest):
    arguments = ("--max_seq_len", 512)

    def ask(self, body, **options):
        status, headers, text = invoke(self.server, body, **options)
        self.assertEqual(status, 200, text)
        return headers["Content-Type"], text

    def lines(self, body):
        kind, text = self.ask({**body, "stream": True})
        self.assertEqual(kind, "application/jsonlines")
        return [json.loads(line) for line in text.splitlines()]

    def test_an_answer_and_its_stream_agree(self):
        body = {"inputs": QUESTION, "parameters": {"max_new_tokens": 120, "details": True}}
        kind, text = self.ask(body)
        self.assertEqual(kind, "application/json")  # exactly: clients compare it
        whole = json.loads(text)
        self.assertEqual(whole["generated_text"].strip(), ANSWER)
        details = whole["details"]
        self.assertEqual(details["finish_reason"], "eos_token")
        self.assertEqual(details["generated_tokens"], len(details["tokens"]))
        self.assertEqual("".join(token["text"] for token in details["tokens"]), whole["generated_text"])
        self.assertTrue(all(token["log_prob"] <= 0 for token in details["tokens"]))
        lines = self.lines(body)
        self.assertEqual([line["token"] for line in lines], details["tokens"])
        self.assertEqual(lines[-1]["generated_text"], whole["generated_text"])
        self.assertEqual(lines[-1]["details"], {key: details[key] for key in ("finish_reason", "generated_tokens", "inputs")})

    def test_the_length_ends_an_answer_by_default(self):
        for count, parameters in ((30, {}), (7, {"max_new_tokens": 7})):
            _, text = self.ask({"inputs": QUESTION, "parameters": {**parameters, "details": True, "ignore_eos_token": True}})
            details = json.loads(text)["details"]
            self.assertEqual((details["finish_reason"], details["generated_tokens"]), ("length", count))

    def test_a_seed_draws_the_same_answer_again(self):
        body = {"inputs": QUESTION, "parameters": {"do_sample": True, "temperature": 3.0, "top_k": 50, "top_p": 1.0, "max_new_tokens": 40}}
        texts = set()
        for seed in (1, 1, 2, 3, 4):
            body["parameters"]["seed"] = seed
            texts.add((seed, self.ask(body)[1]))
        self.assertEqual(len({seed for seed, _ in texts}), 4)
        self.assertEqual(len(texts), 4, "one seed gave two answers")
        self.assertGreater(len({text for _, text in texts}), 1, "the seed has no effect")

    def test_stop_strings_and_alternatives(self):
        word = ANSWER.split()[2]
        _, text = self.ask({"inputs": QUESTION, "parameters": {"max_new_tokens": 60, "stop_sequences": [word], "details": True, "top_n_tokens": 3}})
        answer = json.loads(text)
        self.assertEqual(answer["generated_text"], answer["generated_text"].split(word)[0])
        self.assertEqual(answer["details"]["finish_reason"], "stop_sequence")
        self.assertTrue(all(len(top) == 3 for top in answer["details"]["top_tokens"]))

    def test_a_grammar_shapes_the_answer(self):
        _, text = self.ask({"inputs": QUESTION, "parameters": {"grammar": {"type": "regex", "value": "(noun|verb): [a-z]{3}"}}})
        self.assertRegex(json.loads(text)["generated_text"], r"^(noun|verb): [a-z]{3}$")

    def test_chats_in_both_stream_modes(self):
        body = {"messages": [{"role": "user", "content": QUESTION}], "logprobs": True, "top_logprobs": 1, "max_tokens": 120, "temperature": 0}
        kind, text = self.ask(body)
        self.assertEqual(kind, "application/json")
        choice = json.loads(text)["choices"][0]
        self.assertEqual(choice["message"]["content"].strip(), ANSWER)
        self.assertEqual(choice["finish_reason"], "eos_token")
        self.assertEqual(len(choice["logprobs"]["content"][0]["top_logprobs"]), 1)
        chunks = self.lines(body)
        self.assertEqual(
            "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks), choice["message"]["content"]
        )
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "eos_token")

    def test_lists_csv_text_and_forms(self):
        key = answer_key()
        words = list(key)[::9000]
        questions = [f'What does "{word}" mean?' for word in words]
        body = {"inputs": questions, "parameters": {"max_new_tokens": 200}}
        answers = [answer["generated_text"].strip() for answer in json.loads(self.ask(body)[1])]
        self.assertEqual(answers, [key[word] for word in words])
        table = "id,inputs\n" + "".join('{},"{}"\n'.format(i, q.replace('"', '""')) for i, q in enumerate(questions))
        _, text = self.ask(table, headers={"Content-Type": "text/csv"})
        self.assertEqual(len(json.loads(text)), len(questions))
        _, text = self.ask(QUESTION, headers={"Content-Type": "text/plain"})
        self.assertEqual(len(json.loads(text)), 1)
        form = '--b\r\nContent-Disposition: form-data; name="data"\r\n\r\n' + json.dumps({"inputs": QUESTION}) + "\r\n--b--\r\n"
        _, text = self.ask(form, headers={"Content-Type": "multipart/form-data; boundary=b"})
        self.assertIn("generated_text", json.loads(text))

    def test_bad_requests_are_refused_and_harm_nobody(self):
        for body in ("", "[]", "{", {}, {"inputs": ""}, {"inputs": QUESTION, "parameters": 3}, {"inputs": QUESTION, "parameters": {"num_beams": 4}},
                     {"inputs": "word " * 2000}, {"inputs": QUESTION, "parameters": {"max_new_tokens": 10**12}}):
            status, headers, text = invoke(self.server, body)
            self.assertEqual(status, 424, text)
            self.assertEqual(headers["Content-Type"], "application/json")
            self.assertEqual(set(json.loads(text)), {"code", "error"})
        self.assertEqual(invoke(self.server, {"inputs": QUESTION}, path="/predictions/other")[0], 404)
        self.ask({"inputs": QUESTION})

    def test_many_clients_at_once(self):
        def one(i):
            status, _, text = invoke(self.server, {"inputs": QUESTION, "parameters": {"max_new_tokens": 64, "details": True}, "stream": i % 2 == 1})
            last = json.loads(text.splitlines()[-1])
            return status == 200 and last["details"]["finish_reason"] != "error"

        for clients in (1, 4, 8):
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                self.assertTrue(all(pool.map(one, range(2 * clients))))

    def test_the_shape_of_workers(self):
        status, _, text = self.server.request("GET", "/models/tandem")
        self.assertEqual(status, 200)
        groups = json.loads(text)[0]["models"][0]["workerGroups"]
        self.assertEqual(sum(len(group["workers"]) for group in groups), 1)
        self.assertEqual(self.server.request("GET", "/ping")[0::2], (200, '{"tandem": {"status": "Healthy"}}'))

    def test_answers_that_are_fetched_later(self):
        status, headers, _ = invoke(self.server, {"inputs": QUESTION}, headers={"x-synchronous": "false"})
        self.assertEqual(status, 200)
        token, end = headers["x-next-token"], time.monotonic() + 60
        status = 202
        while status == 202 and time.monotonic() < end:
            status, _, text = invoke(self.server, "", headers={"x-starting-token": token})
        self.assertEqual(status, 200)
        self.assertEqual(text, self.ask({"inputs": QUESTION})[1])

    def test_a_client_that_leaves_frees_its_blocks(self):
        cancelled = self.server.metric("tandem_requests_cancelled_total")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)) as connection:
            body = {"inputs": QUESTION, "stream": True, "parameters": {"max_new_tokens": 400, "ignore_eos_token": True}}
            connection.request("POST", "/invocations", json.dumps(body))
            connection.getresponse().readline()
        names = ("tandem_requests_running", 'tandem_kv_blocks{state="referenced"}')
        end = time.monotonic() + 30
        # A gauge may be that of the step before the request's first.
        while time.monotonic() < end:
            left = self.server.metric("tandem_requests_cancelled_total") - cancelled, *map(self.server.metric, names)
            if left == (1, 0, 0):
                break
            time.sleep(0.05)
        self.assertEqual(left, (1, 0, 0))


class MultiModel(ServerTest):
    arguments = ("--multi_model",)

    def test_models_come_and_go(self):
        register = {"model_name": "small", "url": str(PAIR / "draft")}
        status, _, text = self.server.request("POST", "/models", register)
        self.assertEqual((status, json.loads(text)), (200, {"status": 'Model "small" registered.'}))
        self.assertEqual(self.server.request("POST", "/models", register)[0], 409)
        names = [model["modelName"] for model in json.loads(self.server.request("GET", "/models")[2])["models"]]
        self.assertEqual(names, ["small", "tandem"])
        self.assertEqual(invoke(self.server, {"inputs": QUESTION})[0], 400)
        self.assertEqual(invoke(self.server, {"inputs": QUESTION}, path="/models/small/invoke")[0], 200)
        self.assertEqual(self.server.request("DELETE", "/models/small")[0], 200)
        self.assertEqual(invoke(self.server, {"inputs": QUESTION}, path="/models/small/invoke")[0], 404)
        self.assertEqual(self.server.request("DELETE", "/models/small")[0], 404)
        self.assertEqual(self.server.request("DELETE", "/models/tandem")[0], 400)
        for name in ("preprocessing", "tensorrt_llm"):
            for url in ("/nowhere", str(PAIR / "draft")):
                self.assertEqual(self.server.request("POST", "/models", {"model_name": name, "url": url})[0], 409)
            self.assertEqual(self.server.request("GET", f"/v2/models/{name}/ready")[0], 200)
        for url in ("/nowhere", "file:///nowhere"):
            self.assertEqual(self.server.request("POST", "/models", {"model_name": "x", "url": url})[0], 404)
        self.assertEqual(invoke(self.server, {"inputs": QUESTION})[0], 200)


class End(unittest.TestCase):
    def test_what_runs_may_end(self):
        server = Server()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            body = {"inputs": QUESTION, "stream": True, "parameters": {"max_new_tokens": 300, "ignore_eos_token": True, "details": True}}
            connection.request("POST", "/invocations", json.dumps(body))
            response = connection.getresponse()
            response.readline()
            begun = time.monotonic()
            stopper = threading.Thread(target=server.stop)
            stopper.start()
            last = json.loads(response.read().splitlines()[-1])
            stopper.join()
        self.assertEqual(last["details"]["finish_reason"], "length")
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(server.process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
