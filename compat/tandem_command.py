"""Finds the tandem binary and becomes it: what the scripts with TensorRT-LLM's names do."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))

from tandem_binary import find_tandem  # noqa: E402  (the folder has to be known first)


def become(verb):
    """Replaces this process by `tandem VERB` with the same arguments, environment and terminal."""
    tandem = find_tandem()
    if not tandem:
        sys.exit("tandem: no binary found; build it with ./quickstart or name it in $TANDEM")
    os.execv(tandem, [tandem, verb, *sys.argv[1:]])
