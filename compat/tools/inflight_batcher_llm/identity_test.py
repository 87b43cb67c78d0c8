#!/usr/bin/env python3
"""The name that benchmark_core_model.py had in release 0.5, whose clients sent unsigned integers: same flags."""

import numpy as np
from benchmark_core_model import main

from kserve_client import run

if __name__ == "__main__":
    run(lambda: main(integer=np.uint32))
