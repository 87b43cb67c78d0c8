#!/usr/bin/env python3
"""The old name of `tandem partition`: same flags; the engine runs on every machine."""

from tandem_command import become

become("partition")
