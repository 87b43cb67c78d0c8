#!/usr/bin/env python3
"""The old name of `tandem run`: same flags, same output."""

from tandem_command import become

become("run")
