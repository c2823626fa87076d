# SPDX-License-Identifier: Apache-2.0
"""The budget of imports: exactly which modules each path of a container's start loads, on the Python that runs this.

Each costs every start on every node; whoever adds one changes a list here and says why.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oci_gpu_hook import linked
from oci_gpu_hook.host import stamp, survey
from tests.unit import hosts, starts
from tests.unit.test_contracts import SOURCES, imported, name, standard_library_at_start
from tests.unit.test_linked import PROGRAM, link

# As test_linked has it, and then the rooms that came from files of their own, and what is not ours.
TOLD = PROGRAM.replace(
    'print(status, ",".join(ours), ",".join(files), flush=True)',
    'print(status, ",".join(ours), ",".join(files), ",".join(set(sys.modules) - set(ours)), flush=True)',
)
assert TOLD != PROGRAM


class Loaded(NamedTuple):
    """One start: exit code, what it said, our rooms, those of them with a file, and the standard library's modules."""

    status: int
    said: str
    rooms: set[str]
    files: set[str]
    standard: set[str]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The linked package."""
    path = tmp_path_factory.mktemp("linked") / "library"
    link(path)
    return path


def loads(
    library: Path,
    folder: Path,
    *options: str,
    env: tuple[str, ...] = (),
    stale: Path | None = None,
    **more: Any,
) -> Loaded:
    """A start on a host whose saved inventory is true, but for the file `stale`; `more` goes into config.json.

    Every request here is one that is refused when all is known and nothing has been done: the machine is not touched.
    """
    root = hosts.host(folder / "host")
    (folder / "host/run").mkdir()
    survey.save(root, stamp.now(root, "/"), survey.survey(root))
    if stale:
        stale.write_text("another\n")
    bundle = folder / "bundle"
    (bundle / "rootfs").mkdir(parents=True)
    config = {"root": {"path": "rootfs"}, "process": {"env": list(env)}, **more}
    (bundle / "config.json").write_text(json.dumps(config))
    state = {"id": "c", "pid": os.getpid(), "bundle": str(bundle)}
    words = [
        "createRuntime",
        "--host-root",
        str(folder / "host"),
        *options,
    ]
    ran = subprocess.run(
        starts.command(TOLD, *words),
        input=json.dumps(state).encode(),
        capture_output=True,
        env=starts.environment(library),
    )
    assert ran.returncode == 0, ran.stderr.decode()
    status, *lists = ran.stdout.decode().rstrip("\n").split(" ")
    rooms, files, standard = [set(filter(None, names.split(","))) for names in lists]
    return Loaded(
        int(status), ran.stderr.decode(), rooms, files, standard - standard_library_at_start()
    )


def groups(*names: str) -> set[str]:
    return {linked.full_name(room) for name in names for room in linked.GROUPS[name]}


FOR_STATE_AND_CONFIG = {"_json", "_collections", "gc", "rooms"}
FOR_A_GPU = FOR_STATE_AND_CONFIG | {"_ctypes", "_struct"}
GPU_NODE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
# Asked for and not there: refused when plan and apply are loaded already.
NO_SUCH_GPU = ("NVIDIA_VISIBLE_DEVICES=7",)


def test_a_container_without_a_request(library: Path, tmp_path: Path) -> None:
    """And only where the door has left it to Python at all."""
    found = loads(library, tmp_path, env=("PATH=/bin",))
    assert found == Loaded(0, "", groups("door"), set(), FOR_STATE_AND_CONFIG)


def test_a_container_with_a_gpu(library: Path, tmp_path: Path) -> None:
    found = loads(library, tmp_path, env=NO_SUCH_GPU)
    assert "unknown device '7'" in found.said
    assert found == Loaded(5, found.said, groups("door", "gpu", "provision"), set(), FOR_A_GPU)


def test_a_container_with_a_gpu_and_labels(library: Path, tmp_path: Path) -> None:
    hosts.plant(tmp_path / "host", "sys/fs/selinux/enforce", "1")
    found = loads(library, tmp_path, env=NO_SUCH_GPU)
    assert "unknown device '7'" in found.said
    assert found.rooms == groups("door", "gpu", "labels", "provision")
    assert (found.status, found.files, found.standard) == (5, set(), FOR_A_GPU)


def test_a_container_whose_image_has_requirements(library: Path, tmp_path: Path) -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    found = loads(library, tmp_path, env=env)
    assert "the image requires 'cuda>=99.0'" in found.said
    assert found.rooms == groups("door", "gpu", "provision", "requirements")
    assert (found.status, found.files, found.standard) == (5, set(), FOR_A_GPU)


def test_a_container_by_cdi(library: Path, tmp_path: Path) -> None:
    options = ("--cdi", "compute,utility", "--cdi-driver", "1.2")
    found = loads(library, tmp_path, *options, linux={"devices": [GPU_NODE]})
    assert "the CDI spec is for driver 1.2" in found.said
    assert found.rooms == groups("door", "gpu", "provision", "cdi")
    assert (found.status, found.files, found.standard) == (6, set(), FOR_A_GPU)


def test_settings_bring_nothing_more(library: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text("accept-unprivileged = all\nipc-labels = all\n")
    found = loads(library, tmp_path, "--config", str(settings), env=NO_SUCH_GPU)
    assert found.standard == FOR_A_GPU
    assert found.rooms == groups("door", "gpu")


def test_no_saved_inventory_brings_the_survey_alone(library: Path, tmp_path: Path) -> None:
    """Named here so that it is known what a cold start pays for."""
    hosts.plant(tmp_path / "host", stamp.LD_SO_CACHE, "")
    boot = tmp_path / "host/proc/sys/kernel/random/boot_id"
    found = loads(library, tmp_path, env=NO_SUCH_GPU, stale=boot)
    assert not found.files
    assert found.rooms == groups("door", "gpu", "provision", "survey")
    assert found.standard == FOR_A_GPU


def test_each_private_module_is_named_in_one_place() -> None:
    """Where its fall-back is too; test_fallbacks takes each away."""
    private = ("_ctypes", "_json", "_struct", "_collections")
    named = {
        module: {name(path) for path in SOURCES if module in imported(path)} for module in private
    }
    assert named == {
        "_ctypes": {"oci_gpu_hook/linux.py"},
        "_json": {"oci_gpu_hook/jsontext.py"},
        "_struct": {
            "oci_gpu_hook/ldso.py",
            "oci_gpu_hook/container/devicefilter.py",
            "oci_gpu_hook/host/elf.py",
        },
        "_collections": {"oci_gpu_hook/record.py"},
    }
