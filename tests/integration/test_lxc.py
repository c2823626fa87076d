# SPDX-License-Identifier: Apache-2.0
"""LXC, and LXD or Incus, by Debian's own programs and LXC's own hook, which start nvidia-container-cli by its words.

Unprivileged: the hook runs in the container's user namespace, as root of 100000 on the host.  Privileged, and for any
other: the lines of ``flags lxc``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.engines import in_turn, version
from tests.integration.inside import COMPUTE, gpus, node

# The hook's name for its callers; and what makes a container's procfs show the simulated driver.
BEFORE = """
echo root:100000:65536 | tee -a /etc/subuid >>/etc/subgid
ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
cat >/usr/bin/add-procdriver <<'END'
#!/bin/sh
mount -t tmpfs none $LXC_ROOTFS_MOUNT/proc/driver && mkdir $LXC_ROOTFS_MOUNT/proc/driver/nvidia
END
chmod 755 /usr/bin/add-procdriver
root() {
    mkdir -p /run/lxc/$1/hook && cp -a $2 /run/lxc/$1/rootfs
    for name in proc dev sys tmp run; do mkdir -p /run/lxc/$1/rootfs/$name; done
    cp /run/look /run/lxc/$1/rootfs/look
    chown -R $3:$3 /run/lxc/$1/rootfs /run/lxc/$1/hook
}
cat >/run/look <<'END'
nvidia-smi | sed 's/^/smi /'
test ! -e /app/cuda || /app/cuda
echo root is $(touch /touched 2>/dev/null && echo writable || echo read-only)
mknod /dev/tried c 195 7 2>/dev/null && { true </dev/tried; } 2>&1 | sed 's/.*: /tried: /'
exit 0
END
"""
CONFIG = """
lxc.mount.auto = proc:mixed
lxc.autodev = 1
lxc.net.0.type = empty
lxc.hook.mount = /usr/bin/add-procdriver
"""
UNPRIVILEGED = """
lxc.idmap = u 0 100000 65536
lxc.idmap = g 0 100000 65536
lxc.hook.mount = /usr/share/lxc/hooks/nvidia
lxc.environment = NVIDIA_VISIBLE_DEVICES={asks}
lxc.environment = NVIDIA_DRIVER_CAPABILITIES={capabilities}
"""
# Newer ones refuse v1's lines and leave v1's controllers as they are.
CGROUP, KEY = ("v2", "lxc.cgroup2") if version("lxc-execute") >= (7,) else ("v1", "lxc.cgroup")
PRIVILEGED = f"""
{KEY}.devices.deny = a
{KEY}.devices.allow = c *:* m
{KEY}.devices.allow = c 1:* rwm
"""

# LXC leaves it to every hierarchy.
AFTER = "find /sys/fs/cgroup -depth -type d -name 'lxc.*' -exec rmdir {} + 2>/dev/null || :"


class Row(NamedTuple):
    """A container: what it asks for, its root, more of its configuration; the indices of its GPUs, None if refused."""

    asks: str
    gpus: tuple[int, ...] | None
    root: str = "debian"
    more: str = ""
    capabilities: str = "compute,utility"


ROWS = {
    "index": Row("0", (0,)),
    "two": Row("1,5", (1, 5)),
    "uuid": Row(str(gpus()[3]["uuid"]), (3,)),
    "all": Row("all", (0, 1, 2, 3, 4, 5, 6, 7)),
    "none": Row("none", ()),
    "unknown": Row("99", None),
    "requirement": Row("0", None, more="lxc.environment = NVIDIA_REQUIRE_CUDA=cuda>=99\n"),
    "memory-limit": Row("0", None, more="lxc.environment = NVIDIA_GPU_MEMORY_LIMIT=512\n"),
    "musl": Row("2", (2,), "musl"),
    "distroless": Row("2", (2,), "bare"),
    "read-only": Row("2", (2,), more="lxc.rootfs.options = ro\n"),
    "graphics": Row("0", (0,), capabilities="graphics,utility"),
}


def container(name: str, row: Row, patterns: dict[str, Path]) -> str:
    config = (
        f"lxc.rootfs.path = {DIR}{CONFIG}{UNPRIVILEGED}".format(name=name, asks=row.asks, capabilities=row.capabilities)
        + row.more
    )
    # The bare root has no shell: its program says enough.
    command = "/app/cuda" if row.root == "bare" else "/bin/sh /look"
    return f"""
root {name} {patterns[row.root]} 100000
cat >/run/lxc/{name}/config <<'END'
{config}
END
lxc-execute -P /run/lxc -n {name} -l DEBUG -o /run/lxc/{name}/log -- {command} 2>&1 || echo failed
grep -o 'oci-gpu-hook: .*' /run/lxc/{name}/log | sed 's/^/log /' || :
"""


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    scripts = {name: container(name, row, patterns) for name, row in ROWS.items()}
    scripts["privileged"] = privileged("privileged", patterns["debian"])
    scripts["shown"] = """
sed -i 's/VISIBLE_DEVICES=0/VISIBLE_DEVICES=6/' /run/lxc/index/config
echo 'while sleep 1; do :; done' >/run/lxc/index/rootfs/wait
lxc-execute -P /run/lxc -d -n index -- /bin/sh /wait
oci-gpu-hook containers
oci-gpu-hook doctor --container index || :
oci-gpu-hook doctor | grep callers
lxc-stop -P /run/lxc -k -n index
"""
    return in_turn({**scripts, "after": AFTER}, BEFORE, description="h100x8", cgroup=CGROUP)


def allowed(lines: list[str]) -> set[str]:
    return {line.split()[1] for line in lines if line.startswith("smi /dev/") and line.split()[2] == "allowed"}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.gpus is not None])
def test_an_unprivileged_container_has_what_it_asks_for(seen: dict[str, list[str]], name: str) -> None:
    row, lines = ROWS[name], seen[name]
    assert row.gpus is not None
    assert "failed" not in lines
    if "compute" in row.capabilities:
        assert (f"cuInit 0, {len(row.gpus)} devices" if row.gpus else "cuInit 100, -1 devices") in lines, lines
    if row.root == "bare":
        return
    base = COMPUTE if "compute" in row.capabilities else {"/dev/nvidiactl"}
    assert allowed(lines) >= {node(index) for index in row.gpus} | base, lines
    assert not any(node(index) in allowed(lines) for index in range(8) if index not in row.gpus)
    assert f"root is {'read-only' if name == 'read-only' else 'writable'}" in lines


REFUSED = [
    ("unknown", "unknown device '99'"),
    ("requirement", "cuda>=99"),
    # Its variable is in the call's environment; the call leaves the cgroup to LXC.
    ("memory-limit", "the memory of GPU 0 cannot be limited: "),
]


@pytest.mark.parametrize(("name", "sentence"), REFUSED)
def test_a_refusal_is_said_in_the_log(seen: dict[str, list[str]], name: str, sentence: str) -> None:
    """LXC shows its user nothing of what a hook says."""
    lines = seen[name]
    assert "failed" in lines
    assert any(line.startswith("log oci-gpu-hook: ") and sentence in line for line in lines), lines


def test_a_privileged_container_has_the_lines_of_flags(seen: dict[str, list[str]]) -> None:
    lines = seen["privileged"]
    assert allowed(lines) == COMPUTE | {node(4)}, lines
    assert "cuInit 0, 1 devices" in lines
    assert any(line.startswith("tried: ") and "not permitted" in line for line in lines), lines


def test_commands_know_its_name(seen: dict[str, list[str]]) -> None:
    text = "\n".join(seen["shown"])
    assert "index of LXC, process" in text, text
    assert "LXC" in text.partition("held by no container")[0], text
    assert "pass  callers" in text, text


DIR = "dir:/run/lxc/{name}/rootfs"
OVERLAY = "overlayfs:/run/lxc/{name}/rootfs:/run/lxc/{name}/delta"


def privileged(name: str, root: Path, path: str = DIR) -> str:
    """A container by the lines of ``flags lxc``, and whether its root is as before."""
    config = f"\nlxc.rootfs.path = {path}{CONFIG}"
    return f"""
root {name} {root} 0
mkdir -p /run/lxc/{name}/delta
{{ cat <<'END'
{config.format(name=name)}{PRIVILEGED}
END
oci-gpu-hook flags lxc 4; }} >/run/lxc/{name}/config
(cd /run/lxc/{name}/rootfs; find . | sort) >/run/before
lxc-execute -P /run/lxc -n {name} -l DEBUG -o /run/lxc/{name}/log -- /bin/sh /look 2>&1 || echo failed
(cd /run/lxc/{name}/rootfs; find . | sort) | diff /run/before - && echo root as before || :
grep -o 'oci-gpu-hook: .*' /run/lxc/{name}/log | sed 's/^/log /' || :
find /run/lxc/{name} -type c | sed 's/^/node /'
"""


@pytest.fixture(scope="module")
def on_the_host(patterns: dict[str, Path]) -> dict[str, list[str]]:
    """Privileged containers on a node whose PID 1 has the filesystem that their roots lie on."""
    root = patterns["debian"]
    scripts = {
        "folder": privileged("folder", root),
        "read-only": privileged("ro", root, f"{DIR}\nlxc.rootfs.options = ro"),
        "overlay": privileged("overlay", root, OVERLAY),
    }
    # The node's own /run is an overlay, on which there can be no other.
    before = f"{BEFORE}\nmkdir /run/lxc && mount -t tmpfs none /run/lxc\n"
    return in_turn({**scripts, "after": AFTER}, before, description="h100x8", cgroup=CGROUP, booted=True)


COUNTED = "gpu-holders = 1\n"
LETS_IN = "[caller nvidia-container-cli]\ngpu-holders = 0\n"


def test_where_holders_are_counted_lxcs_are_refused_or_let_in(patterns: dict[str, Path]) -> None:
    """Without a process of its own its GPU would be given to the next; and it must not hold the leases' lock."""
    root = patterns["debian"]
    unprivileged = container("unprivileged", Row("0", None), patterns)
    let_in = f"printf '{LETS_IN}' >>/etc/oci-gpu-hook.conf; {privileged('in', root)}"
    scripts = {"refused": privileged("refused", root), "unprivileged": unprivileged, "let in": let_in}
    scripts["left"] = "ls /run/oci-gpu-hook"
    scripts["after"] = AFTER
    seen = in_turn(scripts, BEFORE, description="h100x8", cgroup=CGROUP, settings=COUNTED)
    for name in ("refused", "unprivileged"):
        assert "failed" in seen[name], seen[name]
        said = [line for line in seen[name] if "without --pid cannot be counted" in line]
        assert said and LETS_IN.partition("\n")[0] in said[0], seen[name]
    assert allowed(seen["let in"]) == COMPUTE | {node(4)}, seen["let in"]
    assert not [name for name in seen["left"] if name.startswith("lease")]


@pytest.mark.parametrize("name", ["folder", "read-only"])
def test_in_a_privileged_root_on_the_host_nothing_is_made(on_the_host: dict[str, list[str]], name: str) -> None:
    lines = on_the_host[name]
    assert "failed" in lines and "root as before" in lines, lines
    assert any("lies in a root of the host's, where nothing is made" in line for line in lines), lines
    assert not any(line.startswith("node ") for line in lines), lines


def test_a_privileged_container_on_an_overlay_has_its_gpu(on_the_host: dict[str, list[str]]) -> None:
    lines = on_the_host["overlay"]
    assert allowed(lines) == COMPUTE | {node(4)}, lines
    assert "cuInit 0, 1 devices" in lines and "root as before" in lines, lines
    assert not any(line.startswith("node ") for line in lines), lines


# Debian's newer releases have Incus in the place of LXD.
FOLDER, CLIENT, DAEMON = ("lxd", "lxc", "lxd") if version("lxd") else ("incus", "incus", "/usr/libexec/incus/incusd")
INSTANCES = """
echo root:100000:65536 | tee /etc/subuid >/etc/subgid
mount -t tmpfs none /var/lib/{folder}
export LXD_CONF=/run/conf INCUS_CONF=/run/conf
mkdir -p /run/image/rootfs
cp -a {root}/. /run/image/rootfs/
for name in proc dev sys tmp run; do mkdir -p /run/image/rootfs/$name; done
cp /run/look /run/image/rootfs/
printf '#!/bin/sh\\nwhile sleep 1; do :; done\\n' >/run/image/rootfs/usr/sbin/init
chmod 755 /run/image/rootfs/usr/sbin/init
printf 'architecture: x86_64\\ncreation_date: 1\\n' >/run/image/metadata.yaml
tar -C /run/image -czf /run/image.tar.gz metadata.yaml rootfs
# It goes before LXC's own hook, which raw.lxc cannot.
echo 'lxc.hook.mount = /usr/bin/add-procdriver' >/usr/share/lxc/config/common.conf.d/00-procdriver.conf
{daemon} >/run/daemon.log 2>&1 &
trap '{daemon} shutdown --timeout 300' EXIT
{daemon} waitready --timeout 300
{client} storage create default dir
{client} profile device add default root disk path=/ pool=default
{client} image import /run/image.tar.gz --alias image
{client} init image one -c nvidia.runtime=true -c nvidia.driver.capabilities=compute,utility
{client} config device add one gpu unix-char path={node}
{client} start one
{client} exec one -- /bin/sh /look
oci-gpu-hook containers
oci-gpu-hook doctor --container one || :
{client} delete --force one
"""


@pytest.mark.skipif(not version(DAEMON), reason="neither LXD nor Incus is here")
def test_lxd_and_incus(patterns: dict[str, Path]) -> None:
    """``nvidia.runtime=true`` brings the driver's files by LXC's hook, and a device of their own brings the GPU."""
    script = INSTANCES.format(root=patterns["debian"], node=node(3), client=CLIENT, daemon=DAEMON, folder=FOLDER)
    lines = in_turn({"instances": script + AFTER}, BEFORE, description="h100x8", cgroup=CGROUP)["instances"]
    assert allowed(lines) == COMPUTE | {node(3)}, lines
    assert [it for it in lines if it.split()[:5] == ["one", "-", "LXC", DAEMON.rpartition("/")[2], "3"]], lines
    assert any("one of LXC, process" in line for line in lines), lines
