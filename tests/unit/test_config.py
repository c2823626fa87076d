# SPDX-License-Identifier: Apache-2.0
"""The administrator's file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from oci_gpu_hook import config
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.hook import SETTINGS


def test_the_default_file_may_be_absent(tmp_path: Path) -> None:
    assert (
        config.read(str(tmp_path / "absent"), may_be_absent=True, annotations={}) == config.Config()
    )


@pytest.fixture()
def machine(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> FakeFilesystem:
    """A machine's files, so that absolute paths can be tested; pyfakefs knows os, and not posix beneath it."""
    monkeypatch.setattr(config, "posix", os)
    return fs


def test_the_default_file_is_read_where_it_is_there(machine: FakeFilesystem) -> None:
    assert config.read(SETTINGS, may_be_absent=True, annotations={}).device_cgroup == "auto"
    machine.create_file("/etc/oci-gpu-hook.conf", contents="device-cgroup = on\n")
    assert config.read(SETTINGS, may_be_absent=True, annotations={}).device_cgroup == "on"


def test_a_file_that_may_not_be_read_is_a_config_error(machine: FakeFilesystem) -> None:
    machine.create_dir("/etc/oci-gpu-hook.conf")
    with pytest.raises(ConfigError, match=r"cannot (open|read) /etc/oci-gpu-hook.conf"):
        config.read(SETTINGS, may_be_absent=True, annotations={})


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open"):
        config.read(str(tmp_path / "absent"), may_be_absent=False, annotations={})


def test_settings_comments_and_empty_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("# a comment\n\n  device-cgroup =  off \n")
    assert config.read(str(path), may_be_absent=False, annotations={}).device_cgroup == "off"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device-cgroup", "no 'key = value' line"),
        ("# fine\ndevice-cgroups = on", ":2: unknown key 'device-cgroups'"),
        ("device-cgroup = maybe", "allowed is one of auto, on, off"),
        ("device-cgroup =", "allowed is one of auto, on, off"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "/etc/oci-gpu-hook.conf")
    assert words in str(caught.value)


def test_a_file_that_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError):
        config.read(str(path), may_be_absent=False, annotations={})
