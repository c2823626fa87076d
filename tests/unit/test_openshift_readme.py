# SPDX-License-Identifier: Apache-2.0
"""packaging/openshift/README.md from top to bottom: what each command names is there.

Files, objects and containers of those files, units and programs of the node.  No cluster, no network.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.request import settingsfile
from tests.unit.manifests import OPENSHIFT, ROOT, documents, generate_without_package

README = (OPENSHIFT / "README.md").read_text()
INLINE = re.findall(r"`((?:oc|kubectl|make) [^`]*)`", README)
# Each indented block, as it is pasted.
BLOCKS = re.findall(r"(?<=\n\n)(?:    .*\n)+(?=\n)", README)
# The machines' own are pasted in tests/unit/test_pools.py.
LINES = [line for it in BLOCKS if "[" not in it[:5] and "machineset" not in it for line in it.splitlines()]
CALLS = [words for words in (shlex.split(line, comments=True) for line in (*LINES, *dict.fromkeys(INLINE))) if words]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make openshift` writes, without the package."""
    folder = tmp_path_factory.mktemp("made")
    assert generate_without_package(folder) == 0
    return folder


def find(made: Path, kind: str, name: str) -> dict[str, Any]:
    everything = [it for path in (*OPENSHIFT.rglob("*.yaml"), *made.iterdir()) for it in documents(path)]
    (found,) = [it for it in everything if (it["kind"], it["metadata"]["name"]) == (kind, name)]
    return found


def check(made: Path, call: list[str]) -> None:
    """AssertionError for words that a client, or what it is told of, would not take."""
    client, *words = call
    if words[0] == "-n":
        assert find(made, "Namespace", words[1])
        words = words[2:]
    verb, what, *_ = (*words, "")
    if client == "make":
        recipe = (ROOT / "Makefile").read_text().partition(f"\n{verb}: ")[2].partition("\n\n")[0]
        assert recipe and verb in ("openshift", "rpm")
        assert all(f"$({word.partition('=')[0]})" in recipe for word in words[1:])
    elif "-f" in words:
        # What is in them is test_openshift.py's.
        path = words[words.index("-f") + 1].replace(".build/openshift", str(made))
        assert verb in ("apply", "delete", "build") and (ROOT / path).is_file()
    elif verb in ("set", "rollout", "logs"):
        of_daemons(made, words)
    elif verb == "debug":
        words = [word for word in words if word == "--" or word[:2] != "--"]
        assert what.startswith("node/") and (not words[2:] or words[2:5] == ["--", "chroot", "/host"])
        of_node(made, words[5:])
    elif verb in ("label", "taint"):
        assert what == "node" and re.fullmatch(r"[a-z.-]+/[a-z-]+=[a-z]+(:NoSchedule)?", words[3])
    elif verb in ("delete", "wait"):
        assert find(made, *{"mc": ("MachineConfig", words[-1])}.get(what, ("MachineConfigPool", what[4:])))
    else:
        assert (client, verb) == ("podman", "push") or (verb, what) == ("get", "nodes"), words


def of_daemons(made: Path, words: list[str]) -> None:
    """What is said of a DaemonSet: images of its containers, variables that these have."""
    what = next(word for word in words if word.startswith("ds/"))
    (container,) = find(made, "DaemonSet", what[3:])["spec"]["template"]["spec"]["containers"]
    for word in words[words.index(what) + 1 :]:
        name, _, value = word.partition("=")
        assert value and name in (container["name"], *[it["name"] for it in container["env"]]), word


def of_node(made: Path, words: list[str]) -> None:
    """What runs on a node: its own programs, and what the MachineConfig puts there."""
    units = find(made, "MachineConfig", "99-gpu-oci-gpu-hook")["spec"]["config"]["systemd"]["units"]
    known = ["", "ls /run/containers/oci/hooks.d", "python3 -V"]
    known += [f"/usr/local/bin/oci-gpu-hook {command}" for command in ("doctor", "info")]
    assert " ".join(words) in [*known, *[f"systemctl status {unit['name'][:-8]}" for unit in units]]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_what_a_command_names_is_there(made: Path, call: list[str]) -> None:
    check(made, call)


def test_each_client_is_used_and_settings_are_read() -> None:
    assert {words[0] for words in CALLS} == {"oc", "kubectl", "podman", "make"}
    (block,) = [it for it in BLOCKS if it.startswith("    [")]
    assert settingsfile.parse_text(block, "README")
