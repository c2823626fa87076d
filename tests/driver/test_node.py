# SPDX-License-Identifier: Apache-2.0
"""An unpacked driver as the node's: NVIDIA's installer as ``-x`` leaves it, and a folder of unpacked packages.

DRIVER_FOLDER in the environment: a developer's own, such as one of 580 or later.  Else the folder is made of the
fetched packages.  It is laid out as three kinds of hosts have a driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.driver import images
from tests.driver.conftest import PACKAGES
from tests.driver.test_packages import FILL, FOLDER, HERE, INSTALL, Seen, look
from tests.gpunode import realdriver
from tests.integration.engines import Bundle, Installed, in_turn, on_node, start

# The folder, the layout and the image that the container has.
CASES = [("run", "run", "rhel"), ("run", "lib64", "arch"), ("packages", "host", "debian")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By what has unpacked it: an unpacked driver."""
    if own := os.environ.get("DRIVER_FOLDER"):
        return {"run": Path(own), "packages": Path(own)}
    made = tmp_path_factory.mktemp("unpacked")
    packages, run = made / "packages", made / "run"
    packages.mkdir()
    for package in sorted((PACKAGES / "535").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, packages], check=True)
    # As in the installer: one flat folder, and in it one of 32-bit libraries and one of firmware.
    for path in [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]:
        if "nvidia" in path.name or path.name.startswith(("lib", "nv")):
            target = run / ("32" if "i386-linux-gnu" in path.parts else "") / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    (run / "firmware").mkdir()
    (run / "firmware/gsp_tu10x.bin").write_text("no firmware\n")
    # Of the installer's own, and of libglvnd, which this machine has, too.
    (run / "libglvnd_install_checker").mkdir()
    for target in (run / "libglvnd_install_checker/libEGL.so.1", run / "libc.so.6"):
        shutil.copy(next(run.glob("libnvidia-ml.so.*")), target)
    return {"run": run, "packages": packages}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_an_unpacked_driver_is_the_nodes(
    installed: Installed,
    folders: dict[str, Path],
    roots_of: dict[str, Path],
    tmp_path: Path,
    case: tuple[str, str, str],
) -> None:
    unpacked, layout, kind = case
    made = Bundle(tmp_path, installed.hooks(), roots_of[kind]).asks("0", "all")
    command = look(images.KINDS[kind], "/app", f"$(find {FOLDER}/lib64 -type f)")
    made.runs("/bin/sh", "-c", command)
    scripts = {
        "inventory": "cat /run/inventory",
        "libc": "readlink -f $(ldd /bin/sh | sed -n 's/.*libc.so.6 => \\([^ ]*\\).*/\\1/p')",
        "doctor": "oci-gpu-hook doctor | grep -E '^[a-z]+ +libraries '",
        "host": look(
            images.KINDS["rhel" if layout == "lib64" else "debian"], f"{made.rootfs}/app", "$(cat /run/paths)"
        ),
        "container": f"{start('runc', made)} 2>&1",
    }
    scripts = {name: f"{{\n{text}\n}} || :" for name, text in scripts.items()}
    before = INSTALL + FILL.format(root=made.rootfs, here=HERE, folder=images.KINDS[kind].folder)
    source = str(folders[unpacked])
    how = {"driver": source, "packages": (PACKAGES / "programs",), "layout": layout}
    seen = Seen(source, realdriver.version(source), in_turn(scripts, before, **how))
    found = seen.inventory()
    assert (found["driver_version"], found["misfits"]) == (seen.version, [])
    its = realdriver.look(realdriver.below(source))
    assert its.libraries[64].keys() - {it["file"] for it in found["libraries"]} <= {"libnvidia-api.so.1", "libc.so.6"}
    assert {item["module"] for item in found["files"]} - {""} == its.modules.keys()
    manifests = {"*" if name.startswith("vulkan") else name for name in its.shared}
    assert manifests <= {item["target"].removeprefix("/usr/share/") for item in found["files"]} | {"*"}
    assert [line.split()[0] for line in seen.said["doctor"]] == ["pass"], seen.said["doctor"]
    for part in ("names", "files"):
        missing = seen.opened("host", part) - seen.opened("container", part)
        assert seen.opened("host", part) and not missing, missing
    assert seen.twins() <= {line.removeprefix("found: ") for line in seen.part("container", "twins")}
    assert bool(seen.twins()) == bool(its.libraries[32])
    for where in ("host", "container"):
        seen.lacks_a_gpu(where)
        assert seen.part(where, "gbm") == ["nvidia-drm_gbm.so"]


def test_what_is_no_driver_or_no_layout_of_one_is_said() -> None:
    done = on_node("true", driver=str(PACKAGES / "rocm"), hook=False)
    assert (done.code, done.err) == (125, "gpunode: no libcuda.so.VERSION among the driver's files\n")
    done = on_node("true", driver="debian:535", layout="current", hook=False)
    assert (done.code, done.err) == (125, "gpunode: --layout current is not for a real driver\n")
