#!/usr/bin/env python3
"""The old name of `tandem quantize`: same flags, same output."""

from tandem_command import become

become("quantize")
