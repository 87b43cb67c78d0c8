#!/usr/bin/env python3
"""Searches the backend's object files for calls of CUDA that a test of allocations and waits would not see.

    tools/check_cuda_calls.py COUNTED OBJECT...      COUNTED: functions that the test counts, separated by commas

Every function of the CUDA runtime that an object calls must be counted, or be in one of the lists here: functions that neither
allocate nor wait, and functions that are always followed by a counted one. No function of the driver may be called by name. One
is called through cudaGetDriverEntryPointByVersion, which this script cannot see: cuTensorMapEncodeTiled, which writes a description
of a matrix into the caller's memory.
"""

import re
import subprocess
import sys

NEITHER_ALLOCATE_NOR_WAIT = set(
    """
    cudaEventElapsedTime cudaEventRecord cudaFuncGetAttributes cudaFuncSetAttribute cudaGetDeviceCount
    cudaGetDeviceProperties cudaGetDriverEntryPointByVersion cudaGetErrorString cudaGetLastError cudaGraphDestroy cudaLaunchKernelExC cudaMemsetAsync
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaOccupancyMaxActiveClusters
    cudaSetDevice cudaStreamBeginCapture cudaStreamEndCapture cudaStreamIsCapturing cudaStreamWaitEvent
    """.split()
)

# They change a recorded graph, which can run only after cudaGraphInstantiate, which is counted.
BEFORE_A_GRAPH_IS_MADE = set(
    """
    cudaGraphAddDependencies cudaGraphAddKernelNode cudaGraphDestroyNode cudaGraphGetNodes cudaGraphMemsetNodeGetParams
    cudaGraphNodeGetDependencies cudaGraphNodeGetDependentNodes cudaGraphNodeGetType
    """.split()
)


def calls_of(path):
    lines = subprocess.run(["nm", "-u", path], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\bU (cu(?:da)?[A-Z]\w*)", lines))


def main(counted, paths):
    calls = {path: calls_of(path) for path in paths}
    known = NEITHER_ALLOCATE_NOR_WAIT | BEFORE_A_GRAPH_IS_MADE | set(counted.split(","))
    unknown = [f"{path}: {call}" for path in paths for call in sorted(calls[path] - known)]
    for line in unknown:
        print(line)
    seen = set().union(*calls.values())
    print(f"{len(paths)} object files call {len(seen)} functions of CUDA, {len(unknown)} of them unknown here")
    return 1 if unknown or not seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
