# SPDX-License-Identifier: Apache-2.0
"""The manual's lines for JupyterHub are Python that each spawner reads, and name what the text says."""

from __future__ import annotations

import ast
import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests import manual
from tests.unit import manifests

# The lines for DockerSpawner and SwarmSpawner are played by tests/docker/test_jupyterhub.py.
_LINES = manual.blocks("oci-gpu-hook-jupyterhub.7")
TELLS, KUBE, TYPED, PROFILES = [_LINES[number] for number in (3, 5, 6, 7)]


class APIError(Exception):
    """Stands for docker.errors.APIError; RuntimeError for tornado.web.HTTPError."""

    explanation = ""


class Refusing:
    """Stands for DockerSpawner, whose Docker refuses each start."""

    async def start(self) -> None:
        raise APIError


def configured(text: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """JupyterHub's configuration after these lines."""
    everything = SimpleNamespace(APIError=APIError, DockerSpawner=Refusing, HTTPError=RuntimeError)
    for name in ("docker", "docker.errors", "dockerspawner", "tornado", "tornado.web"):
        monkeypatch.setitem(sys.modules, name, everything)
    found = SimpleNamespace(KubeSpawner=SimpleNamespace(), JupyterHub=SimpleNamespace())
    ast.parse(text, feature_version=(3, 9))
    exec(compile(text, "jupyterhub_config.py", "exec"), {"c": found})
    return found


SAYS = "OCI create failed: ... oci-gpu-hook: GPU 0 is held by c (hint)\n"


@pytest.mark.parametrize(("explanation", "raised"), [(SAYS, "503, 'GPU 0 is held by c (hint)'"), ("no such image", "")])
def test_a_hubs_user_reads_the_hooks_sentence(monkeypatch: pytest.MonkeyPatch, explanation: str, raised: str) -> None:
    spawner = configured(TELLS, monkeypatch).JupyterHub.spawner_class()
    monkeypatch.setattr(APIError, "explanation", explanation)
    with pytest.raises(RuntimeError if raised else APIError) as caught:
        asyncio.run(spawner.start())
    assert ", ".join(map(repr, caught.value.args)) == raised


def spawned(settings: dict[str, Any]) -> dict[str, Any]:
    """The pod that KubeSpawner makes by these settings, as far as constraints look at it."""
    container = {"name": "notebook", "securityContext": {"allowPrivilegeEscalation": False}}
    return {
        "metadata": {"annotations": settings.get("extra_annotations", {})},
        "spec": {"containers": [container], "securityContext": settings.get("pod_security_context", {})},
    }


def test_openshift_admits_notebooks_each_by_its_own_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    scc = manifests.named("scc-nvidia-container.yaml", "SecurityContextConstraints")
    constraints = {scc["metadata"]["name"]: scc, "restricted-v2": manifests.restricted()}
    rows = configured(PROFILES, monkeypatch).KubeSpawner.profile_list
    assert [row["slug"] for row in rows if row.get("default")] == ["no-gpu"]
    found = {row["slug"]: row["kubespawner_override"] for row in rows}
    ends = {}
    for slug, settings in found.items():
        pod = spawned(settings)
        name = pod["metadata"]["annotations"]["openshift.io/required-scc"]
        ends[slug] = manifests.admitted(pod["spec"], constraints[name])
    level = {"level": "s0:c27,c9"}
    assert ends == {"no-gpu": level, "gpu": {**level, "type": "nvidia_container_t"}}
    limits = {"nvidia.com/gpu": "1"}
    assert [row.get("extra_resource_limits") for row in found.values()] == [None, limits]
    # With the resource alone a pod keeps the default; one that names the type itself is admitted by neither.
    alone, typed = vars(configured(KUBE, monkeypatch).KubeSpawner), vars(configured(TYPED, monkeypatch).KubeSpawner)
    assert alone == {"extra_resource_limits": limits}
    assert manifests.admitted(spawned(alone)["spec"], manifests.restricted()) == level
    assert [manifests.admitted(spawned(typed)["spec"], it) for it in constraints.values()] == [None, None]
