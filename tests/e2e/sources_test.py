"""Models from a hub, from S3 and from archives: `tandem` against servers on this machine that answer as the real ones do, and fail.

    python3 tests/e2e/sources_test.py build/dev/tandem
"""

import gzip
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest
from pathlib import Path

from fake_stores import S3, Hub
from harness import QUESTION, REPOSITORY, TANDEM, Server, answer_key

PAIR = REPOSITORY / "models/dictionary"
KEYS = ("AKIDTEST", "s3cr3t+/key", "session/token==")


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class SourcesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.draft, cls.target = files_of(PAIR / "draft"), files_of(PAIR / "target")

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.top = Path(self.temporary.name)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.upper().startswith(("HF_", "AWS_", "HTTP")) and "PROXY" not in name.upper()
        }
        self.environment |= {"HOME": str(self.top), "HF_HOME": str(self.top / "hf"), "AWS_EC2_METADATA_DISABLED": "true"}
        self.environment.pop("XDG_CACHE_HOME", None)

    def start_hub(self, **models):
        hub = Hub({name.replace("__", "/"): files for name, files in models.items()})
        self.addCleanup(hub.close)
        self.environment["HF_ENDPOINT"] = hub.url
        return hub

    def start_s3(self, objects, keys=KEYS):
        store = S3("bucket", objects, keys)
        self.addCleanup(store.close)
        self.environment["AWS_ENDPOINT_URL_S3"] = store.url
        if keys:
            self.environment |= dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), keys))
        return store

    def tandem(self, *arguments, code=0, **popen):
        done = subprocess.run(
            [TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=self.environment, **popen
        )
        self.assertEqual(done.returncode, code, f"{arguments}:\n{done.stdout}{done.stderr}")
        for secret in ("hf_s3cret", "s3cr3t"):
            self.assertNotIn(secret, done.stdout + done.stderr)
        return done

    def inspect(self, name, *arguments, code=0, **popen):
        return self.tandem("inspect", name, "--log_level", "info", *arguments, code=code, **popen).stderr

    @property
    def snapshot(self):
        (snapshot,) = (self.top / "hf/hub/models--owner--draft/snapshots").iterdir()
        return snapshot


class AddedModelsTest(SourcesTest):
    """Models that a running server gets by request."""

    def start_server(self):
        class Started(Server):
            command = ("env", "-i", *[f"{name}={value}" for name, value in self.environment.items()], TANDEM, "serve")

        server = Started("--multi_model", "--no_draft", "--max_seq_len", 512)
        self.addCleanup(server.stop)
        return server

    def test_models_of_hubs_s3_and_archives_are_added(self):
        self.start_hub(owner__draft=self.draft)
        self.start_s3({f"m/{name}": content for name, content in self.draft.items()})
        path = self.top / "packed.tar.gz"
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            archive.add(PAIR / "draft", "./model")
        server = self.start_server()
        for name, url in (("hub", "owner/draft"), ("s3", "s3://bucket/m"), ("packed", str(path))):
            with self.subTest(url):
                status, _, text = server.request("POST", "/models", {"model_name": name, "url": url})
                self.assertEqual(status, 200, text)
                self.assertEqual(server.request("POST", f"/predictions/{name}", {"inputs": QUESTION})[0], 200)
        status, _, text = server.request("POST", "/models", {"model_name": "absent", "url": "owner/absent"})
        self.assertEqual(status, 404, text)
        self.assertIn("owner/absent", text)

    def test_a_download_does_not_hold_up_the_end(self):
        hub = self.start_hub(owner__draft=self.draft)
        hub.storage.opens.clear()
        server = self.start_server()
        self.assertEqual(server.request("POST", "/models?url=owner/draft&model_name=slow&synchronous=false", "")[0], 202)
        end = time.monotonic() + 60
        while not hub.storage.requests and time.monotonic() < end:
            time.sleep(0.05)
        self.assertTrue(hub.storage.requests)
        begun = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - begun, 20)  # half a minute without a byte would end it, too


class HubTest(SourcesTest):
    def test_a_model_comes_once_in_the_hubs_own_layout(self):
        extra = {"modeling_x.py": b"import os", "pytorch_model.bin": b"older weights", "model.onnx": b"x"}
        hub = self.start_hub(owner__draft=self.draft | extra)
        said = self.inspect("owner/draft")
        self.assertIn("code is left alone, nothing of it is run: modeling_x.py", said)
        self.assertIn("downloaded owner/draft", said)
        commit = hub.commit("owner/draft")
        root = self.top / "hf/hub/models--owner--draft"
        self.assertEqual((root / "refs/main").read_text(), commit)
        self.assertEqual(self.snapshot, root / "snapshots" / commit)
        wanted = sorted(name for name in self.draft if name != "README.md")
        self.assertEqual(sorted(path.name for path in self.snapshot.iterdir()), wanted)
        for name in wanted:
            self.assertTrue((self.snapshot / name).is_symlink())
            self.assertEqual((self.snapshot / name).read_bytes(), self.draft[name])
            self.assertEqual(os.readlink(self.snapshot / name), f"../../blobs/{hub.etag(name, self.draft[name])}")
        self.assertEqual(len(list((root / "blobs").iterdir())), len(wanted))
        before = len(hub.asked("GET", "/resolve/"))
        self.inspect("owner/draft")
        self.assertEqual(len(hub.asked("GET", "/resolve/")), before)
        hub.close()
        self.inspect("owner/draft", "--offline")
        self.inspect("owner/draft", "--revision", commit)  # a commit never changes: nobody is asked
        said = self.inspect("owner/draft", "--offline", "--revision", "v2", code=3)
        self.assertIn("owner/draft (revision v2): it is not in the cache", said)

    def test_a_commit_counts_as_whole_once_its_download_has_ended(self):
        hub = self.start_hub(owner__draft=self.draft)
        commit = hub.commit("owner/draft")
        run = ("run", "owner/draft", "--no_draft", "--revision", commit, "--input_text", QUESTION)
        self.tandem(*run)
        lists = self.top / "hf/hub/models--owner--draft/.tandem"
        for listed in (False, True):  # as an earlier download left it, and damaged later
            (self.snapshot / "tokenizer.json").unlink()
            if not listed:
                shutil.rmtree(lists)
            hub.requests.clear()
            self.tandem(*run)
            self.assertTrue(hub.requests)
            hub.requests.clear()
            self.tandem(*run)
            self.assertFalse(hub.requests)
        (self.snapshot / "tokenizer.json").unlink()
        said = self.inspect("owner/draft", "--revision", commit, "--offline", code=3)
        self.assertIn("tokenizer.json is not in the cache", said)

    def test_a_commit_that_huggingface_hub_fetched_is_used_when_the_hub_cannot_be_asked(self):
        hub = self.start_hub(owner__draft=self.draft)
        commit = hub.commit("owner/draft")
        self.inspect("owner/draft", "--revision", commit)
        shutil.rmtree(self.top / "hf/hub/models--owner--draft/.tandem")
        self.inspect("owner/draft", "--revision", commit, "--offline")
        hub.close()
        self.assertIn("is taken from the cache as it is", self.inspect("owner/draft", "--revision", commit))

    def test_a_pair_from_a_hub_answers(self):
        self.start_hub(owner__target=self.target, owner__draft=self.draft)
        done = self.tandem("run", "owner/target", "owner/draft", "--input_text", QUESTION, "--json")
        self.assertEqual(json.loads(done.stdout)[0]["outputs"][0]["text"], answer_key()["tandem"])
        plan = json.loads(self.tandem("plan", "owner/target", "owner/draft", "--offline", "--json").stdout)
        self.assertEqual((plan["target"], plan["draft"]), ("owner/target", "owner/draft"))

    def test_verbs_that_write_take_models_from_a_hub(self):
        self.start_hub(owner__draft=self.draft)
        self.tandem("convert", "owner/draft", "--output_dir", self.top / "checkpoint")
        properties = self.top / "properties"
        properties.mkdir()
        (properties / "serving.properties").write_text("option.model_id=owner/draft\n")
        self.tandem("partition", "--properties_dir", properties, "--trt_llm_model_repo", self.top / "artifact")
        self.assertTrue((self.top / "checkpoint/rank0.safetensors").exists())
        self.tandem("quantize", "owner/draft", "--qformat", "int8_wo", "--output_dir", self.top / "quantized")
        self.assertTrue((self.top / "quantized/rank0.safetensors").exists())

    def test_a_hub_that_tells_less_is_asked_for_each_file(self):
        hub = self.start_hub(owner__draft=self.draft)
        hub.tells_blobs = False
        self.inspect("owner/draft")
        self.assertEqual(len(hub.asked("HEAD", "/resolve/")), len(self.draft) - 1)
        self.assertEqual((self.snapshot / "model.safetensors").read_bytes(), self.draft["model.safetensors"])

    def test_gated_models_need_a_token_which_the_storage_does_not_see(self):
        hub = self.start_hub(owner__draft=self.draft)
        hub.token = "hf_s3cret"
        said = self.inspect("owner/draft", code=2)
        self.assertIn("owner/draft is gated: accept its terms", said)
        self.assertIn("HF_TOKEN", said)
        self.environment["HF_TOKEN"] = "hf_s3cret"
        self.inspect("owner/draft")
        for _, _, headers in hub.storage.requests:
            self.assertNotIn("Authorization", headers)
        self.assertTrue(hub.storage.requests)

    def test_what_is_not_there_is_named(self):
        self.start_hub(owner__draft=self.draft, owner__gguf={"config.json": b"{}", "model.gguf": b""})
        self.assertIn("no model of that name", self.inspect("owner/other", code=3))
        self.assertIn("owner/draft has no revision v2", self.inspect("owner/draft", "--revision", "v2", code=3))
        self.assertIn("neither model.safetensors nor pytorch_model.bin", self.inspect("owner/gguf", code=2))
        self.assertIn("revision: is no branch, tag or commit", self.inspect("owner/draft", "--revision", "../../x", code=2))

    def test_a_transfer_cut_at_every_tenth_goes_on(self):
        hub = self.start_hub(owner__draft=self.draft)
        weights = self.draft["model.safetensors"]
        begins = []

        def cut(request):
            begin = int(request.headers["Range"].removeprefix("bytes=").split("-")[0])
            begins.append(begin)
            tenth = len(weights) // 10
            request.reply_file(weights, cut_after=tenth)
            return True

        hub.storage.fault = cut
        said = self.inspect("owner/draft")
        self.assertEqual((self.snapshot / "model.safetensors").read_bytes(), weights)
        self.assertEqual(begins, [len(weights) // 10 * i for i in range(len(begins))])
        self.assertIn("next attempt in", said)

    def test_a_killed_download_goes_on_at_the_next_start(self):
        hub = self.start_hub(owner__draft=self.draft)
        weights = self.draft["model.safetensors"]
        half = len(weights) // 2
        sent = threading.Event()

        def stop_in_the_middle(request):
            request.send_response(206)
            request.send_header("Content-Range", f"bytes 0-{len(weights) - 1}/{len(weights)}")
            request.send_header("Content-Length", str(len(weights)))
            request.end_headers()
            request.wfile.write(weights[:half])
            request.wfile.flush()
            sent.set()
            time.sleep(20)
            return True

        hub.storage.fault = stop_in_the_middle
        process = subprocess.Popen(
            [TANDEM, "inspect", "owner/draft"], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.assertTrue(sent.wait(60))
        partial = self.top / "hf/hub/models--owner--draft/blobs" / (hub.etag("model.safetensors", weights) + ".parts")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and int.from_bytes(partial.read_bytes()[128:136], "little") < half:
            time.sleep(0.05)
        process.kill()
        process.wait()
        self.assertFalse((self.snapshot / "model.safetensors").exists())
        self.assertIn("is not in the cache", self.inspect("owner/draft", "--offline", code=3))
        hub.storage.fault = None
        hub.requests.clear()
        hub.storage.requests.clear()
        self.inspect("owner/draft")
        self.assertEqual([path.rsplit("/", 1)[1] for _, path, _ in hub.asked("GET", "/resolve/")], ["model.safetensors"])
        ((_, _, headers),) = hub.storage.requests
        self.assertEqual(headers["Range"], f"bytes={half}-{len(weights) - 1}")
        self.assertEqual((self.snapshot / "model.safetensors").read_bytes(), weights)

    def test_a_wrong_checksum_is_refused_and_fetched_again(self):
        hub = self.start_hub(owner__draft=self.draft)
        weights = bytearray(self.draft["model.safetensors"])
        weights[1_000_000] ^= 1
        hub.storage.fault = lambda request: request.reply_file(bytes(weights)) or True
        said = self.inspect("owner/draft", code=4)
        self.assertIn("model.safetensors: its SHA-256 is", said)
        self.assertFalse((self.snapshot / "model.safetensors").exists())
        hub.storage.fault = None
        self.inspect("owner/draft")

    def test_refusals_of_the_storage_are_told(self):
        hub = self.start_hub(owner__draft=self.draft)
        hub.storage.fault = lambda request: request.reply(403) or True
        self.assertIn("model.safetensors: owner/draft is gated", self.inspect("owner/draft", code=2))

    def test_a_busy_hub_says_when_to_come_back(self):
        hub = self.start_hub(owner__draft=self.draft)
        refused = []

        def busy(request):
            if len(refused) < 2:
                refused.append(time.monotonic())
                request.reply(429, {"Retry-After": "1"})
                return True
            return False

        hub.fault = busy
        self.inspect("owner/draft")
        self.assertGreaterEqual(refused[1] - refused[0], 1)

    def test_a_body_that_stops_is_asked_for_again(self):
        hub = self.start_hub(owner__draft=self.draft)
        weights = self.draft["model.safetensors"]
        stalled = []

        def stall(request):
            if stalled:
                return False
            stalled.append(True)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes 0-{len(weights) - 1}/{len(weights)}")
            request.send_header("Content-Length", str(len(weights)))
            request.end_headers()
            request.wfile.write(weights[:1000])
            request.wfile.flush()
            time.sleep(30)
            return True

        hub.storage.fault = stall
        self.environment["HF_HUB_DOWNLOAD_TIMEOUT"] = "1"
        self.inspect("owner/draft")
        self.assertEqual(hub.storage.requests[1][2]["Range"], f"bytes=1000-{len(weights) - 1}")

    def test_a_full_disk_is_told(self):
        self.start_hub(owner__draft=self.draft)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # noqa: E731
        said = self.inspect("owner/draft", code=5, preexec_fn=limit)
        self.assertIn("cannot be written: File too large", said)
        self.assertFalse((self.snapshot / "model.safetensors").exists())
        self.inspect("owner/draft")

    def test_two_processes_share_one_download(self):
        hub = self.start_hub(owner__draft=self.draft)
        hub.storage.fault = lambda request: time.sleep(1)  # both want it by then
        processes = [
            subprocess.Popen([TANDEM, "inspect", "owner/draft"], env=self.environment, stdout=subprocess.DEVNULL)
            for _ in range(3)
        ]
        self.assertEqual([process.wait(timeout=120) for process in processes], [0, 0, 0])
        asked = [path for _, path, _ in hub.asked("GET", "/resolve/")]
        self.assertEqual(len(asked), len(set(asked)))
        self.assertEqual(len(hub.storage.requests), 1)

    def test_without_its_hub_a_model_comes_from_the_cache(self):
        hub = self.start_hub(owner__draft=self.draft)
        self.inspect("owner/draft")
        hub.fault = lambda request: request.reply(503) or True
        self.assertIn("owner/draft is taken from the cache as it is", self.inspect("owner/draft"))
        self.assertIn("answers 503", self.inspect("owner/other", code=6))

    def test_a_tokenizer_comes_without_weights(self):
        hub = self.start_hub(owner__draft=self.draft)
        self.tandem("run", PAIR / "draft", "--tokenizer_dir", "owner/draft", "--input_text", QUESTION)
        self.assertFalse(hub.storage.requests)


class S3Test(SourcesTest):
    def objects(self, prefix="models/draft/"):
        return {prefix + name: content for name, content in self.draft.items()}

    def test_a_folder_comes_once_and_a_changed_one_again(self):
        store = self.start_s3(self.objects() | {"models/draft-2/x.json": b"", "models/draft/model.py": b""})
        store.page = 3
        said = self.inspect("s3://bucket/models/draft")
        self.assertIn("code is left alone, nothing of it is run: model.py", said)
        got = {path.rsplit("/", 1)[1] for _, path, _ in store.asked("GET", "/bucket/models/")}
        self.assertEqual(got, set(self.draft) - {"README.md"})
        store.requests.clear()
        self.inspect("s3://bucket/models/draft")
        self.assertFalse(store.asked("GET", "/bucket/models/"))
        self.assertFalse(store.asked("HEAD", ""))
        store.objects["models/draft/generation_config.json"] = b'{"eos_token_id": 1}'
        self.inspect("s3://bucket/models/draft/")
        self.inspect("s3://bucket/models/draft")
        store.close()
        self.inspect("s3://bucket/models/draft", "--offline")
        self.assertIn("is not in the cache", self.inspect("s3://bucket/other", "--offline", code=3))

    def test_a_folder_without_files_that_are_read_is_refused(self):
        self.start_s3({"m/README.md": b"x", "m/model.py": b"y", "m/": b""})
        said = self.inspect("s3://bucket/m", code=3)
        self.assertIn("s3://bucket/m: there is no model below this address; what is there is not read: README.md, model.py", said)
        self.start_s3({f"m/{i:02}.png": b"x" for i in range(12)})
        self.assertIn("09.png and 2 more", self.inspect("s3://bucket/m", code=3))
        self.start_s3({"m/": b""})
        self.assertIn("there is nothing below this address", self.inspect("s3://bucket/m", code=3))

    def test_nothing_remains_of_a_version_that_changed_in_the_middle(self):
        store = self.start_s3(self.objects())
        name = "models/draft/model.safetensors"

        def change(request):
            if request.command == "GET" and request.path.endswith("model.safetensors"):
                store.objects[name] = self.draft["model.safetensors"] + b"x"
            return False

        store.fault = change
        self.assertIn("has changed while it was downloaded", self.inspect("s3://bucket/models/draft", code=4))
        (folder,) = (self.top / ".cache/tandem/download").iterdir()
        self.assertEqual(list(folder.iterdir()), [])

        # One that was cut is continued if it is still the same, and goes if it is not.
        store.objects[name] = self.draft["model.safetensors"]
        is_weights = lambda request: request.command == "GET" and request.path.endswith("model.safetensors")  # noqa: E731
        store.fault = lambda request: is_weights(request) and (request.reply(404) or True)
        self.inspect("s3://bucket/models/draft", code=3)
        self.assertEqual(len(list(folder.glob("*.unfinished"))), 1)
        store.fault = None
        store.objects["models/draft/generation_config.json"] = b'{"eos_token_id": 1}'
        self.inspect("s3://bucket/models/draft")
        self.assertEqual(list(folder.glob("*.unfinished")), [])

    def test_names_are_encoded_as_the_signature_wants(self):
        store = self.start_s3(self.objects("a b/größe+(1)=x&y/"))
        store.page = 2
        self.inspect("s3://bucket/a b/größe+(1)=x&y")

    def test_checksums_are_checked(self):
        store = self.start_s3(self.objects())
        weights = bytearray(self.draft["model.safetensors"])
        weights[5] ^= 1

        def damage(request):
            if request.command == "GET" and request.path.endswith("model.safetensors"):
                request.reply_file(bytes(weights))
                return True
            return False

        store.fault = damage
        self.assertIn("model.safetensors: its MD5 is", self.inspect("s3://bucket/models/draft", code=4))
        store.checksums["models/draft/model.safetensors"] = {"x-amz-checksum-crc64nvme": "rosUhgp5mIg="}
        self.assertIn("its CRC-64/NVME is", self.inspect("s3://bucket/models/draft", code=4))

    def test_refusals_say_what_to_do(self):
        store = self.start_s3(self.objects())
        self.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
        self.assertIn("SignatureDoesNotMatch", self.inspect("s3://bucket/models/draft", code=2))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            del self.environment[name]
        self.assertIn("there are no credentials", self.inspect("s3://bucket/models/draft", code=2))
        store.keys = None  # it is public now
        self.assertIn("there is nothing below this address", self.inspect("s3://bucket/none", code=3))
        self.inspect("s3://bucket/models/draft")

    def test_credentials_of_a_profile_are_used(self):
        store = self.start_s3(self.objects(), keys=None)
        store.keys = ("AKIDFILE", "s3cr3t", None)
        (self.top / ".aws").mkdir()
        (self.top / ".aws/credentials").write_text("[work]\naws_access_key_id=AKIDFILE\naws_secret_access_key=s3cr3t\n")
        (self.top / ".aws/config").write_text("[profile work]\nregion=eu-central-1\n")
        self.environment["AWS_PROFILE"] = "work"
        self.inspect("s3://bucket/models/draft")
        self.assertIn("/eu-central-1/s3/", store.requests[0][2]["Authorization"])

    def test_an_archive_is_unpacked(self):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(PAIR / "draft", "model")
        store = self.start_s3({"model.tar.gz": packed.getvalue()})
        self.inspect("s3://bucket/model.tar.gz")
        store.requests.clear()
        self.inspect("s3://bucket/model.tar.gz")
        self.assertFalse(store.asked("GET", "/bucket/model.tar.gz"))


class ArchiveTest(SourcesTest):
    def write(self, members, name="model.tar.gz"):
        path = self.top / "in" / name
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            for member, content in members:
                archive.addfile(member, io.BytesIO(content) if content is not None else None)
        return path

    @staticmethod
    def member(name, content=None, kind=tarfile.REGTYPE, link=""):
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, len(content or b"")
        return member, content

    def test_a_packed_model_is_served_from_the_cache(self):
        for mode, name in (("w:gz", "model.tar.gz"), ("w", "model.tar"), ("w:xz", "model.tar.xz")):
            with tarfile.open(self.top / name, mode) as archive:
                archive.add(PAIR / "draft", "./model")
            self.assertIn("unpacking", self.inspect(self.top / name))
            self.assertNotIn("unpacking", self.inspect(self.top / name))
        subprocess.run(["python3", "-m", "zipfile", "-c", self.top / "model.zip", PAIR / "draft"], check=True)
        self.inspect(self.top / "model.zip")
        self.tandem("run", self.top / "model.tar.gz", "--input_text", QUESTION)

    def test_what_writers_of_archives_write_is_whole(self):
        folder = self.top / "model"
        folder.mkdir()
        for name in set(self.draft) - {"README.md"}:
            (folder / name).write_bytes(self.draft[name])
        commands = [["tar", "-b", blocks, f"--format={form}"] for blocks in ("1", "20") for form in ("gnu", "pax", "ustar", "v7")]
        commands += [["bsdtar", f"--format={form}"] for form in ("pax", "ustar", "gnutar") if shutil.which("bsdtar")]
        for command in commands:
            with self.subTest(command):
                subprocess.run([*command, "-cf", self.top / "written.tar", "-C", self.top, "model"], check=True)
                self.inspect(self.top / "written.tar")
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            with tarfile.open(self.top / "written.tar", "w", format=form) as archive:
                archive.add(folder, "model")
            self.inspect(self.top / "written.tar")

    def test_an_archive_that_was_cut_between_two_files_is_refused(self):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(PAIR / "draft", "model")
        with tarfile.open(fileobj=io.BytesIO(packed.getvalue())) as archive:
            cut = packed.getvalue()[: archive.getmembers()[-1].offset]
        (self.top / "cut.tar").write_bytes(cut)
        (self.top / "cut.tar.gz").write_bytes(gzip.compress(cut, compresslevel=1))
        for name in ("cut.tar", "cut.tar.gz"):
            self.assertIn("it ends early", self.inspect(self.top / name, code=4))
        self.assertEqual(list((self.top / ".cache/tandem/archives").iterdir()), [])

    def test_hostile_archives_are_refused_and_write_nothing(self):
        outside = self.top / "outside"
        outside.mkdir()
        good = self.member("config.json", b"{}")
        sets = {
            "parent": [good, self.member("../../outside/x", b"x")],
            "absolute": [good, self.member(str(outside / "x"), b"x")],
            "link": [good, self.member("l", kind=tarfile.SYMTYPE, link=str(outside)), self.member("l/x", b"x")],
            "inner link": [good, self.member("l", kind=tarfile.SYMTYPE, link="."), self.member("l/x", b"x")],
            "hard link": [good, self.member("h", kind=tarfile.LNKTYPE, link=str(outside / "secret"))],
            "device": [good, self.member("d", kind=tarfile.CHRTYPE)],
            "pipe": [good, self.member("p", kind=tarfile.FIFOTYPE)],
            "long name": [good, self.member("x" * 5000, b"x")],
        }
        (outside / "secret").write_text("untouched")
        for name, members in sets.items():
            with self.subTest(name):
                path = self.write(members)
                self.assertIn("is not unpacked: its entry", self.inspect(path, code=4))
                self.assertEqual([entry.name for entry in outside.iterdir()], ["secret"])
                self.assertEqual(list((self.top / ".cache/tandem/archives").iterdir()), [])
        self.assertEqual((outside / "secret").stat().st_nlink, 1)

    def test_bombs_are_refused_quickly(self):
        path = self.top / "bomb.tar.gz"
        member = tarfile.TarInfo("zeros")
        member.size = 1 << 30
        with gzip.open(path, "wb", compresslevel=9) as out:
            out.write(member.tobuf())
            for _ in range(64):
                out.write(bytes(1 << 20))
        begun = time.monotonic()
        self.assertIn("200 times as long", self.inspect(path, code=4))
        self.assertLess(time.monotonic() - begun, 20)

    def test_a_million_entries_are_refused_quickly(self):
        path = self.top / "many.tar.gz"
        with gzip.open(path, "wb", compresslevel=1) as out:
            thousand = b"".join(tarfile.TarInfo(f"f{i}").tobuf() for i in range(1000))
            for _ in range(1000):
                out.write(thousand)
        begun = time.monotonic()
        self.assertIn("beyond the limit of 20000", self.inspect(path, code=4))
        self.assertLess(time.monotonic() - begun, 60)
        self.assertEqual(list((self.top / ".cache/tandem/archives").iterdir()), [])


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
