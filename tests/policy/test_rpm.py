# SPDX-License-Identifier: Apache-2.0
"""What the RPM's scriptlets do to a policy store, by real rpm and semodule, in a copy of Debian's policy.

The copy is called targeted, as RHEL's and Fedora's is.  This machine's own store is hidden behind it for as long as a
test runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.packaging import rpms
from tests.policy import debian, policies

OURS = ["200/nvidia_container", "200/oci_gpu_hook"]
# A view of this host whose folders are throw-away, but for the store below $1.
SCRIPT = """
mkdir -p /mnt && mount -t tmpfs none /mnt
for folder in usr etc var; do
    mkdir -p /mnt/$folder/upper /mnt/$folder/work
    mount -t overlay -o lowerdir=/$folder,upperdir=/mnt/$folder/upper,workdir=/mnt/$folder/work none /$folder
done
mkdir -p /etc/selinux /var/lib/selinux
mount --bind "$1/etc/selinux" /etc/selinux
mount --bind "$1/var/lib/selinux" /var/lib/selinux
database=$1/rpm
shift
eval "$PREPARATION"
exec rpm --define "_dbpath $database" --nodeps "$@"
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> rpms.Release:
    return rpms.build(tmp_path_factory.mktemp("rpm"))


@pytest.fixture()
def store(tmp_path: Path) -> Path:
    """A root's policy and module store."""
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", policies.build().base, root], check=True)
    for folder in ("etc/selinux", "var/lib/selinux"):
        (root / folder / "default").rename(root / folder / "targeted")
    (root / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=targeted\n")
    return root


def rpm(store: Path, *words: str | Path, preparation: str = "") -> None:
    """Run rpm; preparation: shell commands that come before, in its view of this host."""
    line = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-eu", "-c", SCRIPT, "sh"]
    done = subprocess.run(
        [*line, store, *words],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PREPARATION": preparation},
    )
    assert done.returncode == 0, done.stderr
    assert "scriptlet failed" not in done.stderr, done.stderr


def stored(store: Path) -> list[str]:
    folder = store / "var/lib/selinux/targeted/active/modules"
    return sorted(f"{path.parent.name}/{path.name}" for name in policies.MODULES for path in folder.glob(f"*/{name}"))


def test_modules_come_with_the_package_and_go_with_it(store: Path, release: rpms.Release, tmp_path: Path) -> None:
    previous = rpms.build(tmp_path / "previous", "0.0.1").selinux
    package = release.selinux
    assert stored(store) == []
    for words in (("-i", previous), ("-U", package), ("-U", "--oldpackage", previous)):
        rpm(store, *words)
        assert stored(store) == OURS
    rpm(store, "-e", "oci-gpu-hook-selinux")
    assert stored(store) == []


def test_another_policy_is_left_alone(store: Path, release: rpms.Release) -> None:
    (store / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=minimum\n")
    rpm(store, "-i", release.selinux)
    assert stored(store) == []


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
    store: Path, release: rpms.Release, tmp_path: Path, version: str, now: str, turned: str
) -> None:
    # What is decided does not hang on the modules: without them the test takes no minute.
    (store / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=minimum\n")
    said = tmp_path / "said"
    preparation = CGROUPS.format(said=said, version=version, now=now)
    rpm(store, "-i", release.selinux, preparation=preparation)
    expected = f"-P oci_gpu_hook_use_cgroup_v1 {turned}\n" if turned else ""
    assert (said.read_text() if said.exists() else "") == expected


# The longest beginning that fits decides; of units and the like the base policy speaks.
LABELS = {
    "/usr/libexec/oci/hooks.d/oci-gpu-hook": "oci_gpu_hook_exec_t",
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
    pairs = [line.split("\t") for line in lines]
    return {path: "dir" if mode.startswith("d") else "file" for path, mode in pairs}


def test_every_file_of_the_packages_gets_the_label_that_it_needs(release: rpms.Release) -> None:
    files = {**packaged(release.hook), **packaged(release.selinux)}
    for path in ("/etc/oci-gpu-hook.conf.d", "/run/oci-gpu-hook"):
        assert files[path] == "dir"
    assert [path for path in files if "/oci_gpu_hook/__linked__/" in path]
    assert [path for path in files if path.startswith("/usr/lib/systemd/system/")]
    contexts = debian.file_contexts(policies.build().ours)
    for path, kind in files.items():
        context = debian.run("matchpathcon", "-n", "-m", kind, "-f", contexts, path).strip()
        wanted = LABELS[max((begin for begin in LABELS if path.startswith(begin)), key=len)]
        assert context.split(":")[2] == wanted, path


def test_the_package_leaves_the_labels_to_the_command(release: rpms.Release) -> None:
    """Of what the modules name some lies in folders that others than root may write to: no scriptlet walks them."""
    for scriptlet, word in (("POSTTRANS", "relabel"), ("PREUN", "remove")):
        text = debian.run("rpm", "-qp", "--queryformat", f"%{{{scriptlet}}}", str(release.selinux))
        assert f"oci-gpu-hook selinux {word}" in text
    scripts = debian.run("rpm", "-qp", "--scripts", str(release.selinux))
    assert not [word for word in ("chcon", "restorecon -R", "setfattr") if word in scripts]
