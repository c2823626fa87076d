# SPDX-License-Identifier: Apache-2.0
"""An engine as far as CDI goes: it edits config.json as SPEC.md says, and the hook is started with what it wrote.

What the hook would do is caught where it would begin to do it.  Must not know what the hook does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oci_gpu_hook import apply, asking, cli, hook
from oci_gpu_hook.container import process, rootfs
from oci_gpu_hook.driver import proc, survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.node.gpus.nvml import Facts
from oci_gpu_hook.operations import Device, OpenCgroup
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.state import State
from tests.unit import hosts


class Node(NamedTuple):
    """A host's tree, its administrator's file, and the folder for specs and bundles."""

    tree: Path
    settings: Path
    folder: Path

    def spec(self, capabilities: str = "all", *words: str) -> dict[str, Any]:
        """What `cdi generate` writes for this host."""
        return self._generated(capabilities, "--capabilities", capabilities, *words)

    def vendors_spec(self, flag: str) -> dict[str, Any]:
        """The same for another vendor's devices."""
        return self._generated(flag, "--vendor", flag)

    def _generated(self, name: str, *words: str) -> dict[str, Any]:
        file = self.folder / f"{name}.json"
        if not file.exists():
            arguments = ["cdi", "generate", "--host-root", str(self.tree), "--output", str(file)]
            assert cli.main([*arguments, "--config", str(self.settings), *words]) == 0
        document: dict[str, Any] = json.loads(file.read_text())
        return document


def node(tree: Path, folder: Path, facts: Facts | None = None, settings: str = "") -> Node:
    """A host with its inventory saved."""
    made = Node(tree, folder / "settings", folder)
    made.settings.write_text(settings)
    driver_root = settings.partition("driver-root = ")[2].strip() or "/"
    root = HostRoot(str(tree))
    (tree / "run").mkdir(exist_ok=True)
    found = survey.survey(root, driver_root)
    found = nvml.with_facts(found, facts) if facts else found
    survey.save(root, proc.stamp(root, driver_root), found)
    return made


def bundle(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """A config.json whose root has the loader of the host's own layout."""
    root = folder / "bundle/rootfs"
    hosts.plant(root, f"{hosts.LIBRARY_FOLDER}/libc.so.6", "")
    env = [f"{name}={value}" for name, value in environment.items()]
    return {"process": {"env": env}, "root": {"path": "rootfs"}, "mounts": [], "linux": {}}


def inject(config: dict[str, Any], spec: dict[str, Any], *names: str) -> list[str]:
    """Make the edits of the named devices, the spec's own last; gives the words that its hook is started with."""
    chosen = [device for device in spec["devices"] if device["name"] in names]
    assert len(chosen) == len(names), names
    devices = {}
    for edits in [*[device["containerEdits"] for device in chosen], spec["containerEdits"]]:
        devices.update({item["path"]: item for item in edits.get("deviceNodes", ())})
        # Of a variable given twice the last one counts.
        config["process"]["env"] += edits.get("env", ())
    config["linux"]["devices"] = list(devices.values())
    (started,) = spec["containerEdits"]["hooks"]
    words: list[str] = started["args"]
    return words


def start(config: dict[str, Any], host: Node, words: list[str], progress: Progress | None = None) -> Plan | None:
    """What the hook would do; None if it leaves the container alone."""
    folder = host.folder / "bundle"
    (folder / "config.json").write_text(json.dumps(config))
    caught: list[Plan] = []

    def catch(plan: Plan, *_: object) -> list[str]:
        caught.append(plan)
        return []

    options = asking.options([*words, "--host-root", str(host.tree)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "run", catch)
        patch.setattr(apply, "joined", lambda process: False)
        # The container does not exist: nothing of it is looked at but its root.
        patch.setattr(process, "Process", lambda pid: None)
        patch.setattr(rootfs, "of_process", lambda path, tmpfs, process: rootfs.of_folder(path))
        state = State("c1", 1, str(folder), {})
        hook.start(progress or Progress(), state, options)
    return caught[0] if caught else None


def by_hook(host: Node, environment: dict[str, str]) -> set[Any]:
    """What a container gets by our own hook, for its environment."""
    plan = start(bundle(host.folder, environment), host, ["--config", str(host.settings)])
    assert plan is not None
    return facts(plan.operations)


def by_spec(host: Node, environment: dict[str, str], spec: dict[str, Any], *names: str) -> set[Any]:
    """What it gets by the spec's edits and the hook that the spec starts."""
    config = bundle(host.folder, environment)
    words = inject(config, spec, *names)
    plan = start(config, host, words[2:])
    assert plan is not None
    left, made = [{it.path for it in them if isinstance(it, Device)} for them in (plan.operations, plan.done)]
    assert made == {node["path"] for node in config["linux"]["devices"]}
    # No step opens the device cgroup for a node twice, nor forgets it.
    assert bool(left) == any([isinstance(it, OpenCgroup) for it in plan.operations])
    return facts((*plan.operations, *plan.done))


def facts(operations: tuple[Any, ...]) -> set[Any]:
    """Each operation without why: an engine does not say by which names it was asked."""
    return {it._replace(reason="") for it in operations}
