# SPDX-License-Identifier: Apache-2.0
"""What ``selinux install`` and the RPM do to a policy store, by real semodule and rpm, in a copy of Debian's policy.

For rpm the copy is called targeted, as RHEL's and Fedora's is, and lies in a view of this machine, in its own store's
place.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import packages
from tests.packaging.views import View
from tests.policy import debian, policies

OURS = ["200/nvidia_container", "200/oci_gpu_hook"]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> packages.Release:
    return packages.build("rpm", tmp_path_factory.mktemp("rpm"))


@pytest.fixture()
def view() -> Iterator[View]:
    opened = View()
    for folder in ("etc/selinux", "var/lib/selinux"):
        shutil.rmtree(opened / folder, ignore_errors=True)
        shutil.copytree(f"{policies.build().base}/{folder}/default", opened / folder / "targeted")
    (opened / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=targeted\n")
    yield opened
    opened.close()


def rpm(view: View, *words: str | Path) -> None:
    done = view.rpm("--nodeps", *words)
    assert done.status == 0 and "scriptlet failed" not in done.said, done.said


def stored(root: Path, name: str = "targeted") -> list[str]:
    """Our modules in the store, with their priority."""
    folder = root / f"var/lib/selinux/{name}/active/modules"
    return sorted(f"{path.parent.name}/{path.name}" for name in policies.MODULES for path in folder.glob(f"*/{name}"))


def test_our_command_installs_them_below_an_administrators_and_removes_them(tmp_path: Path) -> None:
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", policies.build().base, root], check=True)
    (root / "etc/selinux/config").write_text("SELINUX=enforcing\nSELINUXTYPE=default\n")
    assert stored(root, "default") == []
    for word, said, modules in (
        ("install", "installed", OURS),
        ("install", "installed", OURS),
        ("remove", "removed", []),
    ):
        line = ["/usr/bin/python3", "-B", "-m", "oci_gpu_hook", "selinux", word, "--host-root", str(root)]
        done = subprocess.run(line, capture_output=True, text=True, cwd=policies.REPOSITORY)
        assert (done.returncode, done.stdout) == (0, f"{said} nvidia_container, oci_gpu_hook\n"), done.stderr
        assert stored(root, "default") == modules
        types = debian.run("seinfo", "-t", "--flat", debian.binary(str(root)))
        assert ("nvidia_container_t" in types) is bool(modules)


def test_modules_come_with_the_package_and_go_with_it(view: View, release: packages.Release, tmp_path: Path) -> None:
    previous = packages.build("rpm", tmp_path / "previous", "0.0.1").selinux
    package = release.selinux
    assert stored(view.path) == []
    for words in (("-i", previous), ("-U", package), ("-U", "--oldpackage", previous)):
        rpm(view, *words)
        assert stored(view.path) == OURS
    rpm(view, "-e", "oci-gpu-hook-selinux")
    assert stored(view.path) == []


def test_another_policy_is_left_alone(view: View, release: packages.Release) -> None:
    (view / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=minimum\n")
    rpm(view, "-i", release.selinux)
    assert stored(view.path) == []


# A kernel with SELinux and cgroups of a version, as far as its files show it.  setsebool writes its words down.
CGROUPS = """
printf '#!/bin/sh\necho "$@" >>{said}\n' >/usr/sbin/setsebool
chmod 0755 /usr/sbin/setsebool
mount -t tmpfs none /sys
mkdir -p /sys/fs/selinux/booleans /sys/fs/cgroup/devices
echo {now} >/sys/fs/selinux/booleans/oci_gpu_hook_use_cgroup_v1
[ {version} = v2 ] || echo 'a *:* rwm' >/sys/fs/cgroup/devices/devices.list
"""


@pytest.mark.parametrize(
    ("version", "now", "turned"), [("v1", "0 0", "1"), ("v1", "1 1", ""), ("v2", "1 1", "0"), ("v2", "0 0", "")]
)
def test_the_hook_may_write_to_cgroups_where_they_are_v1s(
    view: View, release: packages.Release, tmp_path: Path, version: str, now: str, turned: str
) -> None:
    # What is decided does not hang on the modules: without them the test takes no minute.
    (view / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=minimum\n")
    said = tmp_path / "said"
    assert view.sh(CGROUPS.format(said=said, version=version, now=now)).status == 0
    rpm(view, "-i", release.selinux)
    expected = f"-P oci_gpu_hook_use_cgroup_v1 {turned}\n" if turned else ""
    assert (said.read_text() if said.exists() else "") == expected


# The longest beginning that fits decides; of units and the like the base policy speaks.
LABELS = {
    "/usr/libexec/oci/hooks.d/oci-gpu-hook": "oci_gpu_hook_exec_t",
    "/usr/libexec/oci-gpu-hook-start": "oci_gpu_hook_start_exec_t",
    "/usr/lib/oci-gpu-hook": "lib_t",
    "/etc/oci-gpu-hook": "etc_t",
    "/run/oci-gpu-hook": "oci_gpu_hook_state_t",
    "/usr/bin/oci-gpu-hook": "bin_t",
    "/usr/bin/oci-gpu-runtime": "oci_gpu_runtime_exec_t",
    "/usr/lib/systemd/system": "systemd_unit_t",
    "/usr/lib/udev/rules.d/": "udev_rules_t",
    "/usr/lib/": "lib_t",
    "/usr/libexec/": "bin_t",
    "/usr/share/man/": "man_t",
    "/usr/share/": "usr_t",
}


def packaged(package: Path) -> dict[str, str]:
    """What a package holds: path -> kind, as matchpathcon has it."""
    form = "[%{FILENAMES}\\t%{FILEMODES:perms}\\n]"
    lines = debian.run("rpm", "-qp", "--queryformat", form, str(package)).splitlines()
    return {path: "dir" if mode[0] == "d" else "file" for path, mode in (line.split("\t") for line in lines)}


def test_every_file_of_the_packages_gets_the_label_that_it_needs(release: packages.Release) -> None:
    files = {**packaged(release.hook), **packaged(release.selinux)}
    assert [path for path in files if "/oci_gpu_hook/__linked__/" in path]
    contexts = debian.file_contexts(policies.build().ours)
    for path, kind in files.items():
        context = debian.run("matchpathcon", "-n", "-m", kind, "-f", contexts, path).strip()
        wanted = LABELS[max((begin for begin in LABELS if path.startswith(begin)), key=len)]
        assert context.split(":")[2] == wanted, path


def test_the_package_leaves_the_labels_to_the_command(release: packages.Release) -> None:
    """Of what the modules name some lies in folders that others than root may write to: no scriptlet walks them."""
    for scriptlet, word in (("POSTTRANS", "relabel"), ("PREUN", "remove")):
        text = debian.run("rpm", "-qp", "--queryformat", f"%{{{scriptlet}}}", str(release.selinux))
        assert f"oci-gpu-hook selinux {word}" in text
    scripts = debian.run("rpm", "-qp", "--scripts", str(release.selinux))
    assert not [word for word in ("chcon", "restorecon -R", "setfattr") if word in scripts]
