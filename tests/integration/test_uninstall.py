# SPDX-License-Identifier: Apache-2.0
"""`make uninstall`: in which order things go, what goes with them, what stays, and when nothing goes at all."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.test_install import ALONE, COMMAND, ENTRY, LIBRARY, REGISTRATION, RUNTIME, make, run, watched


def test_what_is_registered_is_there_at_any_moment(tmp_path: Path) -> None:
    """An engine that finds the registration alone starts no container; it is the last to come and the first to go."""
    usr, at = tmp_path / "usr", f"DESTDIR={tmp_path}"
    registration, parts = usr / REGISTRATION, (usr / ENTRY, usr / LIBRARY / "oci_gpu_hook")

    def is_alone() -> bool:
        return registration.exists() and not all([it.exists() for it in parts]) and registration.exists()

    with watched(is_alone) as seen:
        assert make("install", at).status == 0
        assert make("uninstall", at).status == 0
    assert not seen


def test_what_runs_by_our_runtime_keeps_it(tmp_path: Path) -> None:
    """No container could be entered or stopped that it has started; none runs by what is to be packed."""
    words = f"make --silent PYTHON={sys.executable} PREFIX={tmp_path}/usr"
    packed = f"DESTDIR={tmp_path}/packed"
    task = "/run/containerd/io.containerd.runtime.v2.task/moby/c1"
    script = f"""mount -t tmpfs none /run
{words} install >/dev/null; find {tmp_path} | sort >/run/before
mkdir -p {task}; echo {tmp_path}/usr/{RUNTIME} >{task}/runtime
! {words} uninstall || exit 9
find {tmp_path} | sort | cmp - /run/before
{words} {packed} install >/dev/null; {words} {packed} uninstall; ls {tmp_path}/packed
"""
    done = run(*ALONE, script)
    assert done.status == 0, done.err
    refused, _, rest = done.err.partition("make uninstall: nothing was removed\n")
    assert f"containers run by {tmp_path}/usr/{RUNTIME}" in refused and "oci-gpu-hook:" not in rest


def test_what_nothing_keeps_true_goes_with_the_machines_own(tmp_path: Path) -> None:
    """Labels of the node, and the spec of the service; not with what is to be packed."""
    at, packed = f"PREFIX={tmp_path}/usr", f"DESTDIR={tmp_path}/packed"
    told, command = tmp_path / "told", tmp_path / "usr" / COMMAND
    assert make("install", at).status == make("install", at, packed).status == 0
    command.write_text(f'#!/bin/sh\n# It stands for oci-gpu-hook.\necho "$*" >>{told}\n')
    gone = ["features --remove", "cdi remove /run/cdi/oci-gpu-hook.yaml"]
    for settings, said in ((at, packed), []), ((at,), gone):
        told.write_text("")
        assert make("uninstall", *settings).status == 0
        assert told.read_text().splitlines() == said


def test_the_administrators_settings_stay(tmp_path: Path) -> None:
    assert make("install", f"DESTDIR={tmp_path}").status == 0
    for is_there in (False, True):
        settings = tmp_path / "etc/oci-gpu-hook.conf"
        if is_there:
            settings.parent.mkdir()
            settings.write_text("records = no\n")
        done = make("uninstall", f"DESTDIR={tmp_path}")
        assert done.status == 0, done.err
        assert (f"{settings} is the administrator's: left there" in done.out, settings.exists()) == (is_there, is_there)
