# SPDX-License-Identifier: Apache-2.0
"""packaging/openshift/README.md from top to bottom: each block of commands runs, with clients that check their words.

What a client is given must be there: files that their schemas accept, objects and containers of those files, units and
programs of the node.  No cluster, no network.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from oci_gpu_hook.request import settingsfile
from tests.unit.manifests import GENERATE, OPENSHIFT, ROOT, documents, generate_without_package, judge

pytestmark = pytest.mark.unit

README = (OPENSHIFT / "README.md").read_text()
CLIENTS = ("oc", "kubectl", "podman", "make")
INLINE = re.compile(r"`((?:oc|kubectl|make|packaging/openshift/generate\.py) [^`]*)`")
# What a client was started with, a NUL behind each word and a newline as the last.
CLIENT = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" '\n' >>"$CALLS"
"""


def blocks() -> list[str]:
    """Each indented block, as it is pasted."""
    found = []
    for part in README.split("\n\n"):
        lines = part.split("\n")
        if all(line.startswith("    ") for line in lines):
            found.append("".join(f"{line[4:]}\n" for line in lines))
    return found


SETTINGS = [it for it in blocks() if it.startswith("[")]
# The machines' own are pasted in tests/unit/test_pools.py.
COMMANDS = [it for it in blocks() if not it.startswith("[") and "machineset" not in it]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, machineconfigs: Path) -> Path:
    """The tree that the blocks are pasted in, with what `make openshift` writes, and the clients."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "packaging").symlink_to(ROOT / "packaging")
    (folder / ".build").mkdir()
    (folder / ".build/openshift").symlink_to(machineconfigs)
    (folder / "bin").mkdir()
    for name in CLIENTS:
        (folder / "bin" / name).write_text(CLIENT)
        (folder / "bin" / name).chmod(0o755)
    return folder


def calls_of(sources: Path, block: str) -> list[list[str]]:
    """What the clients are started with if the block is pasted."""
    calls = sources / "calls"
    calls.write_text("")
    environment = {**os.environ, "CALLS": str(calls), "PATH": f"{sources}/bin:{os.environ['PATH']}"}
    ran = subprocess.run(
        ("bash", "-euo", "pipefail", "-c", block), cwd=sources, env=environment, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, ""), block
    return [call.split("\0")[:-1] for call in calls.read_text().split("\n\0")[:-1]]


def everything(sources: Path) -> list[dict[str, Any]]:
    paths = [*OPENSHIFT.rglob("*.yaml"), *(sources / ".build/openshift").iterdir()]
    return [document for path in paths for document in documents(path)]


def find(sources: Path, kind: str, name: str) -> dict[str, Any]:
    (found,) = [it for it in everything(sources) if (it["kind"], it["metadata"]["name"]) == (kind, name)]
    return found


def check(sources: Path, call: list[str]) -> None:
    """AssertionError for words that a client, or what it is told of, would not take."""
    client, *words = call
    if client in ("make", "podman"):
        builds(sources, words) if client == "podman" else makes(words)
        return
    if words[0] == "-n":
        assert find(sources, "Namespace", words[1])
        words = words[2:]
    verb, what = words[:2]
    if "-f" in words:
        applies(sources, words)
    elif verb in ("set", "rollout", "logs"):
        of_daemons(sources, words)
    elif verb == "debug":
        assert what.startswith("node/") and (not words[2:] or words[2:5] == ["--", "chroot", "/host"])
        of_node(sources, words[5:])
    elif verb in ("label", "taint"):
        assert what == "node" and re.fullmatch(r"[a-z.-]+/[a-z-]+=[a-z]+(:NoSchedule)?", words[3])
    else:
        names = {"delete": ("mc", "MachineConfig", words[-1]), "wait": (what, "MachineConfigPool", what[4:])}
        assert [verb, what] == ["get", "nodes"] or what == names[verb][0], words
        assert verb == "get" or find(sources, *names[verb][1:])


def makes(words: list[str]) -> None:
    assert words[0] == "openshift" and all(re.fullmatch(r"ROLE=\w+", word) for word in words[1:])
    assert "\nopenshift: " in (ROOT / "Makefile").read_text()


def builds(sources: Path, words: list[str]) -> None:
    assert words[0] in ("build", "push")
    assert words[0] == "push" or ((sources / words[words.index("-f") + 1]).is_file() and words[-1] == ".")


def applies(sources: Path, words: list[str]) -> None:
    assert words[:-1] in (["apply", "-f"], ["apply", "--server-side", "-f"], ["delete", "-f"]), words
    for document in yaml.safe_load_all((sources / words[-1]).read_text()):
        if document["kind"] != "MachineConfigPool":
            judge(document["kind"]).validate(document)


def of_daemons(sources: Path, words: list[str]) -> None:
    """What is said of a DaemonSet: images of its containers, variables that these have."""
    what = next(word for word in words if word.startswith("ds/"))
    (container,) = find(sources, "DaemonSet", what[3:])["spec"]["template"]["spec"]["containers"]
    for word in words[words.index(what) + 1 :]:
        name, _, value = word.partition("=")
        assert value and name in (container["name"], *[it["name"] for it in container["env"]]), word


def of_node(sources: Path, words: list[str]) -> None:
    """What runs on a node: its own programs, and what the MachineConfig puts there."""
    config = find(sources, "MachineConfig", "99-gpu-oci-gpu-hook")["spec"]["config"]
    units = [unit["name"].rpartition(".")[0] for unit in config["systemd"]["units"]]
    if not words:
        return
    if words[0] == "systemctl":
        assert words[1:] == ["status", words[-1]] and words[-1] in units
    elif words[0] == "/usr/local/bin/oci-gpu-hook":
        assert words[1:] in (["doctor"], ["info"])
    else:
        assert words in (["ls", "/run/containers/oci/hooks.d"], ["python3", "-V"]), words


def test_there_are_blocks_and_each_client_is_used() -> None:
    assert (len(COMMANDS), len(SETTINGS)) == (7, 1)
    assert {client for client in CLIENTS if any(client in block for block in COMMANDS)} == {*CLIENTS}


@pytest.mark.parametrize("block", COMMANDS, ids=[block.split("\n")[0] for block in COMMANDS])
def test_a_block_is_pasted(sources: Path, block: str) -> None:
    calls = calls_of(sources, block)
    assert len(calls) >= len([line for line in block.splitlines() if line.startswith(CLIENTS)])
    for call in calls:
        check(sources, call)


@pytest.mark.parametrize("command", dict.fromkeys(INLINE.findall(README)))
def test_a_command_in_the_text_is_pasted(
    sources: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith("packaging/"):
        program, folder, *words = shlex.split(command)
        assert ROOT / program == GENERATE and folder == "FOLDER"
        monkeypatch.chdir(tmp_path)
        Path("FILE").write_text("driver-root = /run/nvidia/driver\n")
        assert generate_without_package(tmp_path / folder, *words) == 0
        return
    (call,) = calls_of(sources, command)
    check(sources, call)


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_are_read(block: str) -> None:
    assert settingsfile.parse_text(block, "README")
