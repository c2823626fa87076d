# SPDX-License-Identifier: Apache-2.0
"""The settings file that is installed: every key, each commented out, each with its true default."""

from __future__ import annotations

from pathlib import Path

from oci_gpu_hook import config

FILE = Path(__file__).resolve().parents[2] / "packaging/oci-gpu-hook.conf"


def uncommented() -> list[str]:
    """The settings alone: beside them "#" is followed by a blank."""
    lines = FILE.read_text().splitlines()
    return [line[1:] for line in lines if line.startswith("#") and line[1:2] not in ("", " ")]


def test_as_installed_it_says_nothing() -> None:
    assert config.settings(str(FILE), False) == []


def test_it_has_every_key_once() -> None:
    assert sorted(line.partition("=")[0].strip() for line in uncommented()) == sorted(config._KEYS)


def test_what_it_calls_the_default_is_the_default() -> None:
    lines = config.parse("\n".join(uncommented()), str(FILE))
    assert config.effective(lines, {}) == config.Config()
