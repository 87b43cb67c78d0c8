#!/usr/bin/env python3
"""The name of `tandem build` in release 0.5: same flags; what only the old compiler needed is recorded."""

from tandem_command import become

become("build")
