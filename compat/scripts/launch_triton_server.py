#!/usr/bin/env python3
"""Starts the server on a model repository, in the background, and returns.

    launch_triton_server.py --model_repo REPO
    launch_triton_server.py --model_repo REPO --log --log_level info --host 0.0.0.0 --api_key_file keys.txt

One process named `tritonserver` serves all models on all their devices, so `pkill tritonserver` stops it. Flags that
place the ranks of an MPI program are accepted; those without effect are named when the server starts. All
flags that are not listed here go to the server (`tandem serve --help`). It can be reached from this machine only unless
--host names another address.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tandem_binary import SCRIPTS, find_tandem, is_program

NAME = "tritonserver"
INSTALLED = f"/opt/tritonserver/bin/{NAME}"
# A server that cannot take its options or write its log ends within this time.
EARLY_SECONDS = 1


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_repo", default=str(SCRIPTS.parent / "all_models/inflight_batcher_llm"), help="the model repository")
    add("--tritonserver", help=f"the server's program; default: tandem where it is found, or {INSTALLED}")
    add("--http_port", type=int, default=8000)
    add("--grpc_port", type=int, default=8001)
    add("--metrics_port", type=int, default=8002)
    add("--force", "-f", action="store_true", help=f"start although another {NAME} runs")
    add("--log", action="store_true", help="write a verbose log to --log-file")
    add("--log-file", default="triton_log.txt", help="the file of --log")
    add("--exit_timeout", type=int, help="seconds that requests have to end in when the server is stopped")
    add("--world_size", type=int, default=1, help="ranks of a launch through MPI; here: of a model that says nothing else")
    add("--multi-model", action="store_true", help="serve several models of the kind tensorrt_llm")
    add("--disable-spawn-processes", action="store_true", help="with --multi-model: ranks are started beforehand")
    ranks = parser.add_argument_group("accepted without effect: one process serves all devices, without MPI")
    without_effect = [
        ranks.add_argument("--tensorrt_llm_model_name", default="tensorrt_llm"),
        ranks.add_argument("--multimodal_gpu0_cuda_mem_pool_bytes", type=int, default=0),
        ranks.add_argument("--oversubscribe", action="store_true"),
        ranks.add_argument("--no-mpi", action="store_true"),
        ranks.add_argument("--trtllm_llmapi_launch", action="store_true"),
    ]
    return parser, without_effect


def find_program(named):
    """The program that --tritonserver names, else the first one found."""
    if named:
        if not is_program(named):
            sys.exit(f"--tritonserver: {named} is not a program that can be run")
        return named
    candidates = [SCRIPTS / NAME, find_tandem(), INSTALLED, shutil.which(NAME)]
    for candidate in candidates:
        if candidate and is_program(candidate):
            return str(candidate)
    sys.exit("no server found: put tandem beside this script or on the PATH, or name it with --tritonserver or $TANDEM")


def running_servers(proc="/proc"):
    """The ids of the processes named tritonserver, without those that have ended."""
    found = []
    for folder in Path(proc).iterdir():
        if folder.name.isdigit():
            try:
                name, state = (folder / "stat").read_text().partition("(")[2].rsplit(")", 1)
            except OSError:  # it ended meanwhile
                continue
            if name == NAME and state.split()[0] not in "ZX":
                found.append(int(folder.name))
    return sorted(found)


def server_arguments(options, others=()):
    arguments = [
        f"--model-repository={options.model_repo}",
        f"--http-port={options.http_port}",
        f"--grpc-port={options.grpc_port}",
        f"--metrics-port={options.metrics_port}",
        "--disable-auto-complete-config",
    ]
    if options.world_size != 1:
        arguments += [f"--world-size={options.world_size}"]
    if options.log:
        arguments += ["--log-verbose=3", f"--log-file={options.log_file}"]
    if options.exit_timeout is not None:
        arguments += [f"--exit-timeout-secs={options.exit_timeout}"]
    return [*arguments, *others]


def server_environment(options):
    environment = dict(os.environ)
    if options.multi_model:
        environment["TRTLLM_ORCHESTRATOR"] = "1"
    if options.disable_spawn_processes:
        environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] = "0"
    return environment


def start(program, arguments, environment=None):
    """Runs the program in the background under the name tritonserver; it outlives the terminal."""

    def run(executable):
        return subprocess.Popen(
            [NAME, *arguments],
            executable=executable,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    # The system names a process after the file that is executed: a link gives a program another name. A script is read
    # once more after it was started, so a link to it could not be removed here; it keeps its own name.
    with open(program, "rb") as file:
        is_script = file.read(2) == b"#!"
    if is_script or os.path.basename(program) == NAME:
        return run(os.path.abspath(program))
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, NAME)
        os.symlink(os.path.abspath(program), link)
        return run(link)


def failure(server):
    """Why the server has ended already; None while it runs, or when somebody stopped it."""
    try:
        code = server.wait(EARLY_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if code == 0:
        return None
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def main(arguments=None, proc="/proc"):
    parser, without_effect = make_parser()
    options, others = parser.parse_known_args(arguments)
    if not os.path.isdir(options.model_repo):
        parser.error(f"--model_repo: there is no folder {options.model_repo}")
    running = running_servers(proc)
    if running and not options.force:
        sys.exit(
            f"{NAME} already runs, process {', '.join(map(str, running))}. Stop it (pkill {NAME}), or use --force and "
            "other ports"
        )
    program = find_program(options.tritonserver)
    given = [flag for flag in without_effect if getattr(options, flag.dest) != flag.default]
    if given:
        print(f"without effect in one process: {', '.join(flag.option_strings[0] for flag in given)}", flush=True)
    try:
        server = start(program, server_arguments(options, others), server_environment(options))
    except OSError as error:
        sys.exit(f"{program} could not be started: {error}")
    if reason := failure(server):
        sys.exit(f"{NAME} ended at once ({reason}): {program}")
    log = f", log in {options.log_file}" if options.log else ""
    print(f"{NAME} started as process {server.pid}: {program}{log}", flush=True)
    server.returncode = 0  # it runs on: nobody here waits for it
    return server.pid


if __name__ == "__main__":
    main()
