#!/usr/bin/env python3
"""Runs a command on a GPU and shows what each kernel costs where it is in a step.

    bench/kernel_times.py [--keep N] [--cupti FOLDER] [--save FILE] -- COMMAND...
    bench/kernel_times.py --read FILE

For each kernel and grid: how often it ran, how long it ran, and its share of the time: from the end of whatever ended before
it to its own end, so that time in which it only waited beside an earlier kernel is not counted. Only the last N kernels are
read, so that loading and warming up are left out. Steps take as long as without: CUPTI does not serialize kernels.

Needs a C++ compiler and CUPTI, which is part of the CUDA toolkit and of the package nvidia-cuda-cupti.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().with_name("kernel_times.cc")


def toolkits():
    """Folders that may hold the CUDA toolkit."""
    folders = [pathlib.Path(path) for path in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if path]
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        spec = None
    return folders + [pathlib.Path(path) for path in (spec.submodule_search_locations if spec else [])]


def find_cupti(folder):
    """(include folders, library) of CUPTI."""
    candidates = [pathlib.Path(folder)] if folder else []
    for toolkit in toolkits():
        candidates += [toolkit / "extras" / "CUPTI", toolkit]
    for candidate in candidates:
        libraries = sorted(path for name in ("lib64", "lib") for path in (candidate / name).glob("libcupti.so*"))
        if libraries and (candidate / "include" / "cupti.h").exists():
            return [candidate / "include", *(toolkit / "include" for toolkit in toolkits())], libraries[0]
    sys.exit(f"no CUPTI (cupti.h and libcupti.so) in {folder or 'the CUDA toolkit'}: it is part of the CUDA toolkit and of the "
             "Python package nvidia-cuda-cupti; --cupti names its folder")


def build(folder, cupti):
    includes, library = cupti
    target = pathlib.Path(folder) / "libkernel_times.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", *(f"-I{path}" for path in includes), str(SOURCE),
               str(library), "-o", str(target)]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"{SOURCE.name} does not compile; the toolkit's include folder, which has cuda.h, is found by CUDA_HOME")
    return target


def run(command, keep, cupti, save):
    """The lines of the file that the command leaves."""
    found = find_cupti(cupti)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernels.txt"
        environment = dict(os.environ, CUDA_INJECTION64_PATH=str(build(folder, found)), KERNEL_TIMES_FILE=str(path),
                           KERNEL_TIMES_KEEP=str(keep))
        paths = [str(found[1].parent), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
        done = subprocess.run(command, env=environment)
        text = path.read_text() if path.exists() else ""
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    if save:
        pathlib.Path(save).write_text(text)
    return text.splitlines()


def short_names(mangled):
    """{mangled name: the kernel's name with its template arguments, without namespaces and parameters}."""
    mangled = sorted(mangled)
    try:
        demangled = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
        names = demangled.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = mangled
    short = {}
    for name, readable in zip(mangled, names):
        readable = readable.replace("(anonymous namespace)::", "").removeprefix("void ")
        readable = re.sub(r"\([\w:]+\)(?=[\d-])", "", readable)  # the types of template arguments
        short[name] = re.sub(r"\w+::", "", readable.split("(")[0])
    return short


def summarize(lines):
    """[(name, grid, count, mean us, mean us after the kernel before, total ms)], the costliest first."""
    kernels = [line.split(" ", 5) for line in lines]
    names = short_names({kernel[5] for kernel in kernels})
    sums, last_end = {}, None
    for begin, end, x, y, z, name in kernels:
        begin, end = int(begin), int(end)
        after = max(end - (begin if last_end is None else last_end), 0)
        last_end = end if last_end is None else max(last_end, end)
        entry = sums.setdefault((names[name], f"{x}x{y}x{z}"), [0, 0, 0])
        entry[0] += 1
        entry[1] += end - begin
        entry[2] += after
    rows = [(*key, count, ran / count / 1e3, after / count / 1e3, after / 1e6) for key, (count, ran, after) in sums.items()]
    return sorted(rows, key=lambda row: -row[5])


def main():
    arguments, command = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=int, default=8000, help="of the last kernels; default: 8000")
    parser.add_argument("--cupti", help="CUPTI's folder, with include and lib64; default: the toolkit's or Python's")
    parser.add_argument("--save", metavar="FILE", help="keep the times of single kernels")
    parser.add_argument("--read", metavar="FILE", help="show a file that --save kept")
    options = parser.parse_args(arguments)
    if bool(command) == bool(options.read):
        parser.error("give a command after --, or --read")
    if options.read:
        try:
            lines = pathlib.Path(options.read).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"--read: {error}")
        if any(len(line.split(" ", 5)) < 6 for line in lines):
            parser.error(f"--read: {options.read} is not a file that --save kept")
    else:
        lines = run(command, options.keep, options.cupti, options.save)
    if not lines:
        sys.exit("no kernel has run")
    rows = summarize(lines)
    total = sum(row[5] for row in rows) or 1.0
    print(f"{'runs':>7} {'us':>9} {'us after':>9} {'ms':>9} {'share':>6}  kernel and grid")
    for name, grid, count, ran, after, milliseconds in rows:
        print(f"{count:7} {ran:9.2f} {after:9.2f} {milliseconds:9.2f} {100 * milliseconds / total:5.1f}%  {name} {grid}")


if __name__ == "__main__":
    main()
