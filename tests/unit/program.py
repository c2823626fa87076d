# SPDX-License-Identifier: Apache-2.0
"""The command line for tests: what a command prints, and the sentence with which it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oci_gpu_hook import cli


class Program:
    """The program as people start it; `err` is what the last command said on stderr."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.err = ""

    def __call__(self, *words: object, code: int = 0) -> str:
        """What a command prints that must end with this code."""
        assert cli.main([*map(str, words)]) == code
        out, self.err = self._capture.readouterr()
        return out

    def document(self, *words: object) -> Any:
        """What a command prints for programs."""
        return json.loads(self(*words, "--json"))

    def mistake(self, code: int, *words: object) -> str:
        """The one sentence, on stderr alone, of a command that must fail with this code."""
        assert self(*words, code=code) == ""
        assert self.err.startswith("oci-gpu-hook: ") and len(self.err.splitlines()) == 1
        return self.err
