#!/usr/bin/env python3
"""The old name of `tandem run`, where the old examples kept it: same flags, same output."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tandem_command import become  # noqa: E402  (the folder has to be known first)

become("run")
