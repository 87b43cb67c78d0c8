"""Finds the tandem binary and becomes it: what every script in this folder does.

Looked for in $TANDEM, beside this folder (bin/tandem of a bundle, build/release/tandem of a checkout), then on the PATH.
"""

import os
import shutil
import sys
from pathlib import Path


def find_tandem():
    root = Path(__file__).resolve().parent.parent
    candidates = [os.environ.get("TANDEM"), root / "bin/tandem", root / "build/release/tandem", shutil.which("tandem")]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    sys.exit("tandem: no binary found; build it with ./quickstart or name it in $TANDEM")


def become(verb):
    """Replaces this process by `tandem VERB` with the same arguments, environment and terminal."""
    tandem = find_tandem()
    os.execv(tandem, [tandem, verb, *sys.argv[1:]])
