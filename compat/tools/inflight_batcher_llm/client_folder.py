"""Importing it makes the modules of inflight_batcher_llm/client known to the tools of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "inflight_batcher_llm/client"))
