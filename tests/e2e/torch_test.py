"""Model folders that torch saved, written here by Python's own pickle and zipfile: no torch is needed."""

import collections
import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import types
import unittest
import zipfile
from pathlib import Path

from harness import QUESTION, REPOSITORY, Server, answer_key, tandem

KEY = answer_key()
PAIR = REPOSITORY / "models/dictionary"


def under_torchs_name(module, thing):
    """Makes pickle write `thing` as a member of that module."""
    sys.modules.setdefault(module, types.ModuleType(module))
    thing.__module__, thing.__qualname__ = module, thing.__name__
    setattr(sys.modules[module], thing.__name__, thing)
    return thing


STORAGES = {
    dtype: under_torchs_name("torch", type(name, (), {}))
    for dtype, name in {"BF16": "BFloat16Storage", "F32": "FloatStorage"}.items()
}


def _rebuild_tensor_v2():
    raise AssertionError("only its name is pickled")


def _rebuild_parameter():
    raise AssertionError("only its name is pickled")


under_torchs_name("torch._utils", _rebuild_tensor_v2)
under_torchs_name("torch._utils", _rebuild_parameter)


class StorageId:
    """Pickled as a persistent id."""

    def __init__(self, dtype, key, count):
        self.id = ("storage", STORAGES[dtype], key, "cpu", count)


class Tensor:
    def __init__(self, storage, shape):
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
        self.arguments = (storage, 0, tuple(shape), tuple(strides), False, collections.OrderedDict())

    def __reduce__(self):
        return _rebuild_tensor_v2, self.arguments


class Parameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return _rebuild_parameter, (self.tensor, True, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, thing):
        return thing.id if isinstance(thing, StorageId) else None


def save(path, value, storages):
    """What torch.save does; `storages` are the bytes by key."""
    pickled = io.BytesIO()
    Pickler(pickled, protocol=2).dump(value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickled.getvalue())
        archive.writestr(f"{path.stem}/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"{path.stem}/data/{key}", data)
        archive.writestr(f"{path.stem}/version", "3\n")


def read_safetensors(path):
    """(dtype, shape, bytes) by name."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        first, last = tensor["data_offsets"]
        yield name, (tensor["dtype"], tensor["shape"], data[begin + first : begin + last])


def save_with_torch(folder):
    """Rewrites the safetensors files of a folder, and its index, as torch's; alternately as plain tensors in a
    state_dict and as parameters in a dictionary."""
    for number, path in enumerate(sorted(folder.glob("*.safetensors"))):
        weights = collections.OrderedDict() if number % 2 == 0 else {}
        storages = {}
        for name, (dtype, shape, data) in read_safetensors(path):
            key = str(len(storages))
            storages[key] = data
            count = len(data) // {"BF16": 2, "F32": 4}[dtype]
            tensor = Tensor(StorageId(dtype, key, count), shape)
            weights[name] = tensor if number % 2 == 0 else Parameter(tensor)
        if number % 2 == 0:
            weights._metadata = collections.OrderedDict({"": {"version": 1}})
        save(folder / renamed(path.name), weights, storages)
        path.unlink()
    for path in folder.glob("*.index.json"):
        (folder / renamed(path.name)).write_text(renamed(path.read_text()))
        path.unlink()


def renamed(text):
    text = text.replace("model-", "pytorch_model-").replace("model.safetensors", "pytorch_model.safetensors")
    return text.replace(".safetensors", ".bin")


class SaysWhereItRan:
    """Unpickling this creates the file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class TorchFoldersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = Path(cls.folder.name)
        for name in ("target", "draft"):  # with shards, and without
            shutil.copytree(PAIR / name, cls.work / name)
            save_with_torch(cls.work / name)
        assert (cls.work / "target/pytorch_model.bin.index.json").exists()
        assert (cls.work / "draft/pytorch_model.bin").exists()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_they_give_the_answers_of_the_same_weights_in_safetensors(self):
        answers = []
        for folder in (PAIR, self.work):
            done = tandem("run", folder / "target", folder / "draft", "--input_text", QUESTION, "--json")
            answers.append(json.loads(done.stdout)[0]["outputs"][0]["text"])
        self.assertEqual(answers[0], answers[1])
        self.assertIn(KEY["tandem"], answers[0])

    def test_they_are_served(self):
        server = Server(self.work / "target", self.work / "draft")
        try:
            status, answer = server.generate(QUESTION)
            self.assertEqual(status, 200, answer)
            self.assertIn(KEY["tandem"], answer["text_output"])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_they_convert_to_the_same_checkpoint(self):
        for name in ("target", "draft"):
            checkpoints = [self.work / f"{name}-{kind}" for kind in ("safetensors", "torch")]
            for source, checkpoint in zip((PAIR, self.work), checkpoints):
                tandem("convert", "--model_dir", source / name, "--output_dir", checkpoint)
            ranks = [(checkpoint / "rank0.safetensors").read_bytes() for checkpoint in checkpoints]
            self.assertTrue(ranks[0] == ranks[1], name)

    def test_they_are_inspected(self):
        tensors = tandem("inspect", self.work / "target", "--tensors", "--check").stdout
        self.assertIn("pytorch_model-00002-of-00003.bin", tensors)
        shown = json.loads(tandem("inspect", self.work / "draft/pytorch_model.bin", "--check", "--json").stdout)
        expected = json.loads(tandem("inspect", PAIR / "draft/model.safetensors", "--json").stdout)
        self.assertEqual(shown["pytorch_model.bin"], expected["model.safetensors"])

    def test_a_folder_may_have_the_name_of_a_file(self):
        model = self.work / "exported.pt"
        shutil.copytree(PAIR / "draft", model)
        self.assertIn("LlamaForCausalLM", tandem("inspect", model, "--check").stdout)

    def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(self):
        model, ran = self.work / "hostile", self.work / "ran"
        shutil.copytree(self.work / "draft", model)
        # Where torch.load would run it: as a tensor, as a name, and in what is no tensor.
        for value in ({"w": SaysWhereItRan(ran)}, {SaysWhereItRan(ran): 1}, SaysWhereItRan(ran)):
            save(model / "pytorch_model.bin", value, {})
            for verb in (
                ["run", model, "--input_text", "x"],
                ["serve", model, "--port", 0],
                ["convert", "--model_dir", model, "--output_dir", self.work / "unused"],
                ["inspect", model / "pytorch_model.bin"],
            ):
                done = tandem(*verb, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, r"model\.bin: data\.pkl: opcode GLOBAL at byte \d+: posix\.system is not")
                self.assertFalse(ran.exists(), verb)
        with open(model / "pytorch_model.bin", "rb") as file:
            with zipfile.ZipFile(file) as archive:
                pickle.loads(archive.read("pytorch_model/data.pkl"))
        self.assertTrue(ran.exists(), "the pickle is harmless, so this test shows nothing")


if __name__ == "__main__":
    unittest.main()
