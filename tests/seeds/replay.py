"""Replays the command lines of a document on a copy of compat/, against the real server and with real clients.

    tools/test_python tests/seeds/replay.py build/dev/tandem 002_engines 002_simple 002_clients

A document is a shell script with the lines as they were published. What it cannot name as it did is replaced before it runs
(`ADAPTED`): the ports, which the system chooses, the root folders of its containers, and `pkill tritonserver`, which would stop
servers of others. Lines that begin with `check` or `wait_until_ready` are the test's own (prelude.sh).
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
# (regular expression, replacement): a path at the root follows a blank, a colon or an equals sign.
ADAPTED = (
    (r"(?<=[\s:=])/(?=(tensorrtllm_backend|models|workspace|opt|all_models|app|model_input|model_output|usr/local/bin/launch-llgtrt)\b)", "${root}/"),
    (r"launch_triton_server\.py", r"\g<0> >>${server_log} 2>\&1 --force --http_port 0 --grpc_port 0 --metrics_port 0"),
    (r"localhost:8000", "localhost:${http_port}"),
    (r"localhost:8001", "localhost:${grpc_port}"),
    (r"pkill tritonserver", "stop_server"),
)


def adapted(text):
    for pattern, replacement in ADAPTED:
        text = re.sub(pattern, replacement.replace(r"\&", "&"), text)
    return text


def replay(parts, program, root):
    """The exit code of the document's lines; it may be in several parts."""
    shutil.copytree(REPOSITORY / "compat", root / "tensorrtllm_backend", ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".curlrc").write_text("silent\nshow-error\n")
    environment = {
        **os.environ,
        "root": str(root),
        "server_log": str(root / "server.log"),
        "PAIR": str(REPOSITORY / "models/dictionary"),
        "PRELUDE": str(HERE / "prelude.sh"),
        "TANDEM": str(Path(program).resolve()),
        "PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{root}/tensorrtllm_backend:{os.environ['PATH']}",  # trtllm-build
        "HF_HOME": str(root / "hub"),  # no model of this machine
        "CURL_HOME": str(root),
        "no_proxy": "localhost,127.0.0.1",
    }
    lines = 'set -euo pipefail; . "$PRELUDE"\n' + "".join(adapted((HERE / f"{part}.sh").read_text()) for part in parts)
    return subprocess.run(["bash", "-c", lines], cwd=root, env=environment, timeout=240, check=False).returncode


def stop_what_is_left(log):
    """Ends the servers that a document which failed has left running."""
    if log.exists():
        for pid in re.findall(r"^tritonserver started as process (\d+):", log.read_text(), re.MULTILINE):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "tritonserver\n":
                    os.kill(int(pid), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="tandem")
    parser.add_argument("parts", nargs="+", help="names of scripts in this folder, run as one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        try:
            code = replay(options.parts, options.program, Path(folder))
        finally:
            stop_what_is_left(log)
        if code and log.exists():
            print(f"the server's log:\n{log.read_text()}")
    print(f"{' '.join(options.parts)}: {'FAILED' if code else 'passed'}")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
