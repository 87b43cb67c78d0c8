"""Finds the program that the scripts of this folder tree run.

It is here rather than a folder higher because containers often get nothing but `scripts/`.
"""

import os
import shutil
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent


def is_program(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_tandem():
    """$TANDEM, beside the scripts, in the bundle or checkout around them, then on the PATH; None without any."""
    root = SCRIPTS.parent.parent
    candidates = [
        os.environ.get("TANDEM"),
        SCRIPTS / "tandem",
        SCRIPTS / "bin/tandem",
        root / "bin/tandem",
        root / "build/release/tandem",
        shutil.which("tandem"),
    ]
    return next((str(candidate) for candidate in candidates if candidate and is_program(candidate)), None)
