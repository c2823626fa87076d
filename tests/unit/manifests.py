# SPDX-License-Identifier: Apache-2.0
"""The documents of packaging/openshift, and what judges them: real schemas, and OpenShift's admission."""

from __future__ import annotations

import functools
import json
import runpy
from pathlib import Path
from typing import Any

import yaml
from jsonschema.validators import validator_for

ROOT = Path(__file__).resolve().parents[2]
OPENSHIFT = ROOT / "packaging/openshift"
GENERATE = OPENSHIFT / "generate.py"
SCHEMAS = ROOT / "tests/data/schemas"
AGENTS = ("device-plugin", "dcgm-exporter", "gpu-feature-discovery")
POOLS = ("pools/training.yaml", "pools/inference.yaml")


def strict(schema: Any) -> Any:
    """The schema with every object closed that names its properties."""
    if isinstance(schema, dict):
        closed = {key: strict(value) for key, value in schema.items()}
        if isinstance(schema.get("properties"), dict):
            closed.setdefault("additionalProperties", False)
        return closed
    return [strict(item) for item in schema] if isinstance(schema, list) else schema


@functools.lru_cache
def closed(name: str) -> Any:
    """A file of schemas, closed; it is checked once, which takes longer than all documents."""
    schema = strict(json.loads((SCHEMAS / name).read_text()))
    validator_for(schema).check_schema(schema)
    return schema


def judge(kind: str) -> Any:
    """What judges documents of a kind, by its schema and all that it refers to."""
    for name in ("kubernetes-1.25", "openshift-scc", "openshift-machineconfig", "openshift-machines"):
        whole, key = closed(f"{name}.json"), "$defs" if name == "kubernetes-1.25" else "definitions"
        if kind in whole[key]:
            return validator_for(whole)({**whole, "$ref": f"#/{key}/{kind}"})
    raise AssertionError(f"no schema for {kind}")


# libyaml's, where it is there: a MachineConfig takes the other a hundred times as long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.load_all(path.read_text(), _LOADER) if item]


def named(file: str, kind: str) -> dict[str, Any]:
    (found,) = [item for item in documents(OPENSHIFT / file) if item["kind"] == kind]
    return found


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    """The pod of what makes pods, with its metadata."""
    found: dict[str, Any] = document if document["kind"] == "Pod" else document["spec"]["template"]
    return found


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def admitted(spec: dict[str, Any], scc: dict[str, Any]) -> dict[str, str] | None:
    """The SELinux options that a pod ends with under constraints; None if they do not admit it.

    MustRunAs: a pod without options gets those of the constraints, one with options keeps them; the two must then be
    equal.  A type that neither names is the engine's.
    """
    assert scc["seLinuxContext"]["type"] == "MustRunAs"
    # What the constraints leave out of a level, the namespace's annotation fills in.
    wanted = {"level": "s0:c27,c9", **scc["seLinuxContext"].get("seLinuxOptions", {})}
    volumes = {key for volume in spec.get("volumes", ()) for key in volume if key != "name"}
    if not volumes <= set(scc["volumes"]) or {"hostPID", "hostNetwork", "hostIPC"} & spec.keys():
        return None
    pods_own = spec.get("securityContext", {})
    for container in containers(spec):
        asked = {**pods_own, **container.get("securityContext", {})}
        added = set(asked.get("capabilities", {}).get("add", ())) - set(scc["allowedCapabilities"])
        # Constraints without privilege refuse who may gain more, which is Kubernetes' default.
        if added or asked.get("privileged") or asked.get("allowPrivilegeEscalation", True):
            return None
        if asked.get("runAsUser", scc["runAsUser"].get("uid")) != scc["runAsUser"].get("uid"):
            return None
        if asked.get("seLinuxOptions", wanted) != wanted:
            return None
    return wanted


def environment_of(spec: dict[str, Any]) -> dict[str, str]:
    """The variables of a pod's first container."""
    return {item["name"]: item["value"] for item in spec["containers"][0]["env"]}


def allowed(scc: dict[str, Any]) -> list[str]:
    """What constraints allow or demand by a single word."""
    return sorted(key for key, value in scc.items() if value is True)


def restricted() -> dict[str, Any]:
    """restricted-v2, which is what scc-nvidia-container.yaml is but for the type."""
    scc = named("scc-nvidia-container.yaml", "SecurityContextConstraints")
    del scc["seLinuxContext"]["seLinuxOptions"]
    return scc


def generate_without_package(folder: Path, *words: str) -> int:
    """The exit code of generate.py, for a package of one file: what is made of all of it takes seconds."""
    script = runpy.run_path(str(GENERATE))
    preset = script["File"]("/usr/local/lib/systemd/system-preset/90-oci-gpu-hook.preset", b"")
    script["main"].__globals__.update(installed=lambda _: [preset], payload=lambda _: b"")
    code: int = script["main"]([str(folder), *words])
    return code
