# SPDX-License-Identifier: Apache-2.0
"""Images and pods that try to lead the hook elsewhere: links, volumes, fifos, the host's own /dev.

Each case names what it must not reach; a start that goes through and one that is stopped are both fine where the test
says so, a change outside the container's root never is.
"""

from __future__ import annotations

import os
import posix
from pathlib import Path
from typing import Callable

import pytest

from oci_gpu_hook.container import devices, mounts
from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, on_node, run, start

LIBRARIES = f"usr/lib/{roots.MULTIARCH}"
CUDA = f"{LIBRARIES}/libcuda.so.1"


def to_magic_link(root: Path) -> None:
    (root / CUDA).symlink_to("/proc/1/root/etc/planted")


def to_own_process(root: Path) -> None:
    (root / CUDA).symlink_to("/proc/self/cwd/planted")


def to_the_hosts_path(root: Path) -> None:
    (root / CUDA).symlink_to("/outside/planted")


def up_and_out(root: Path) -> None:
    (root / CUDA).symlink_to("../" * 30 + "outside/planted")


def a_folder_that_leads_out(root: Path) -> None:
    (root / "usr/bin").rename(root / "usr/real-bin")
    (root / "usr/bin").symlink_to("/outside")
    (root / "outside").mkdir()
    for name in ("busybox", "sh"):
        (root / "outside" / name).write_bytes((root / "usr/real-bin/busybox").read_bytes())
        (root / "outside" / name).chmod(0o755)


def the_cache_leads_out(root: Path) -> None:
    (root / "etc/ld.so.cache").unlink()
    (root / "etc/ld.so.cache").symlink_to("/outside/planted")


def links_in_a_ring(root: Path) -> None:
    (root / CUDA).symlink_to("ring")
    (root / LIBRARIES / "ring").symlink_to("libcuda.so.1")


def a_folder_in_its_place(root: Path) -> None:
    (root / CUDA).mkdir()


def a_file_for_a_folder(root: Path) -> None:
    (root / "usr/lib/firmware").write_text("no folder")


TRICKS: list[Callable[[Path], None]] = [
    to_magic_link,
    to_own_process,
    to_the_hosts_path,
    up_and_out,
    a_folder_that_leads_out,
    the_cache_leads_out,
    links_in_a_ring,
    a_folder_in_its_place,
    a_file_for_a_folder,
]


def names(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
def test_no_link_leads_out_of_the_root(
    installed: Installed, bundle: Maker, tmp_path: Path, trick: Callable[[Path], None]
) -> None:
    made = bundle("debian").asks("0").runs("/bin/sh", "-c", "echo started")
    trick(made.rootfs)
    for name in ("dev", "proc", "sys"):
        (made.rootfs / name).mkdir(exist_ok=True)
    before = roots.listing(made.rootfs)
    script = (
        # /outside on the node stands for a folder of the host that an image would like to reach.
        f"mkdir -p {tmp_path}/out /mnt && mount --bind {tmp_path}/out /mnt; find /etc /mnt >{tmp_path}/b; "
        f"{start('runc', made)} || echo stopped; find /etc /mnt >{tmp_path}/a; cmp {tmp_path}/b {tmp_path}/a"
    )
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert done.out in ("started\n", "stopped\n")
    assert not os.path.exists("/outside")
    assert not os.path.exists("/etc/planted")
    assert names(tmp_path / "out") == []
    if done.out == "stopped\n":
        assert "exit status 7" in done.err
        assert roots.listing(made.rootfs) == before


def test_a_link_that_another_driver_left_is_followed_in_the_root(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("debian").asks("0").runs("/app/cuda")
    (made.rootfs / CUDA).symlink_to("libcuda.so.535.54.03")
    done = run(installed, "runc", "v2", made)
    assert (done.code, done.out) == (0, "cuInit 0, 1 devices\n"), done.err
    assert os.readlink(made.rootfs / CUDA) == "libcuda.so.535.54.03"


def volume(made: Bundle, source: Path, destination: str, *options: str) -> None:
    source.mkdir(exist_ok=True)
    mount = {
        "type": "bind",
        "source": str(source),
        "destination": destination,
        "options": ["rbind", *options],
    }
    made.config["mounts"].append(mount)


@pytest.mark.parametrize("options", [("rw",), ("ro",), ("rw", "rshared")])
def test_a_volume_over_the_library_folder_stops_the_start_and_stays_as_it_was(
    installed: Installed, bundle: Maker, tmp_path: Path, options: tuple[str, ...]
) -> None:
    made = bundle("busybox").asks("0")
    volume(made, tmp_path / "volume", "/usr/lib64", *options)
    done = run(installed, "runc", "v2", made.runs("/bin/sh", "-c", "echo started"))
    assert "exit status 7" in done.err
    assert "lies in a volume of the host, where nothing is made" in done.err
    assert names(tmp_path / "volume") == []


@pytest.mark.parametrize("over", ["/usr", "/usr/lib64", "//usr/./lib64/"])
def test_a_volume_over_a_mount_of_the_containers_own_is_a_volume(
    installed: Installed, bundle: Maker, tmp_path: Path, over: str
) -> None:
    """The path of the tmpfs leads to the host's folder then."""
    made = bundle("busybox").asks("0")
    tmpfs = {"type": "tmpfs", "source": "tmpfs", "destination": "/usr/lib64"}
    made.config["mounts"].append(tmpfs)
    volume(made, tmp_path / "volume", over)
    (tmp_path / "volume/lib64").mkdir()
    done = run(installed, "runc", "v2", made.runs("/bin/sh", "-c", "echo started"))
    assert "exit status 7" in done.err
    assert "lies in a volume of the host, where nothing is made" in done.err
    assert names(tmp_path / "volume") == [str(tmp_path / "volume/lib64")]


def test_an_image_cannot_lead_a_volume_over_a_mount_of_the_containers_own(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    """The volume is mounted at /data, which is a link of the image's to where the tmpfs is."""
    made = bundle("busybox").asks("0")
    (made.rootfs / "usr/lib64").mkdir(parents=True, exist_ok=True)
    (made.rootfs / "data").symlink_to("/usr/lib64")
    tmpfs = {"type": "tmpfs", "source": "tmpfs", "destination": "/usr/lib64"}
    made.config["mounts"].append(tmpfs)
    volume(made, tmp_path / "volume", "/data")
    done = run(installed, "runc", "v2", made.runs("/bin/sh", "-c", "echo started"))
    assert "exit status 7" in done.err
    assert "lies in a volume of the host, where nothing is made" in done.err
    assert names(tmp_path / "volume") == []


def test_a_mount_of_the_containers_own_over_a_volume_is_its_own(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    made = bundle("busybox").asks("0")
    volume(made, tmp_path / "volume", "/usr")
    (tmp_path / "volume/lib64").mkdir()
    tmpfs = {"type": "tmpfs", "source": "tmpfs", "destination": "/usr/lib64"}
    made.config["mounts"].append(tmpfs)
    done = run(installed, "runc", "v2", made.runs("/bin/sh", "-c", "ls /usr/lib64"))
    assert "libcuda.so.1\n" in done.out, done.err
    assert names(tmp_path / "volume") == [str(tmp_path / "volume/lib64")]


def test_a_volume_over_the_programs_loses_only_the_programs(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    made = bundle("busybox").asks("0")
    volume(made, tmp_path / "volume", "/usr/bin")
    done = run(installed, "runc", "v2", made.runs("/bin/sh", "-c", "ls /usr/bin; ls /dev/nvidia*"))
    assert done.code == 0, done.err
    assert "nvidia-smi" not in done.out
    assert "/dev/nvidiactl" in done.out
    assert names(tmp_path / "volume") == []


def test_a_mount_that_shares_with_the_host_is_not_mounted_on(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    made = bundle("busybox").asks("0")
    volume(made, tmp_path / "volume", "/usr/bin", "rshared")
    (tmp_path / "volume/nvidia-smi").write_text("the volume's own")
    made.runs("/bin/sh", "-c", "cat /usr/bin/nvidia-smi")
    script = (
        f"mount --bind {tmp_path}/volume {tmp_path}/volume; mount --make-shared {tmp_path}/volume; "
    )
    done = on_node(
        installed, script + f"{start('runc', made)}; grep -c volume /proc/self/mountinfo"
    )
    assert (done.code, done.out) == (0, "the volume's own1\n"), done.err


def test_the_hosts_own_dev_is_not_changed(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    made = bundle("busybox").asks("1")
    mounts = [
        mount for mount in made.config["mounts"] if not mount["destination"].startswith("/dev")
    ]
    made.config["mounts"] = [
        *mounts,
        {"type": "bind", "source": "/dev", "destination": "/dev", "options": ["rbind"]},
    ]
    made.runs("/bin/sh", "-c", "cat /dev/nvidiactl 2>&1; true")
    script = (
        f"ls -l /dev >{tmp_path}/before; {start('runc', made)}; ls -l /dev >{tmp_path}/after; "
        f"cmp {tmp_path}/before {tmp_path}/after"
    )
    # The host lacks two of the nodes: they must not be made there.
    done = on_node(installed, script, faults=("no-uvm-nodes",))
    assert done.code == 0, done.out + done.err
    assert "No such device or address" in done.out


def test_a_fifo_as_the_cache_does_not_hold_the_start_up(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("debian").asks("0").runs("/app/cuda")
    (made.rootfs / "etc/ld.so.cache").unlink()
    os.mkfifo(made.rootfs / "etc/ld.so.cache")
    done = run(installed, "runc", "v2", made, timeout=60)
    assert (done.code, done.out) == (0, "cuInit 0, 1 devices\n"), done.err


@pytest.mark.parametrize(
    "content",
    [b"", b"glibc-ld.so.cache1.1" + b"\xff" * 500, b"\0" * 100_000],
    ids=["empty", "numbers", "zeros"],
)
def test_a_damaged_cache_is_replaced(installed: Installed, bundle: Maker, content: bytes) -> None:
    made = bundle("debian").asks("0").runs("/sbin/ldconfig", "-p")
    (made.rootfs / "etc/ld.so.cache").write_bytes(content)
    done = run(installed, "runc", "v2", made)
    assert done.code == 0, done.err
    assert "libcuda.so.1 (libc6" in done.out
    assert (made.rootfs / "etc/ld.so.cache").read_bytes() == content


def test_a_container_without_proc_starts(installed: Installed, bundle: Maker) -> None:
    made = bundle("bare").asks("0").runs("/app/cuda")
    made.config["mounts"] = [
        mount for mount in made.config["mounts"] if mount["destination"] != "/proc"
    ]
    made.config["linux"]["maskedPaths"] = made.config["linux"]["readonlyPaths"] = []
    done = run(installed, "crun", "v2", made)
    assert "exit status" not in done.err, done.err


def test_no_variable_of_the_container_reaches_the_hook(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    """CVE-2025-23266: a hook without an env of its own inherited LD_PRELOAD from the container."""
    made = bundle("busybox").asks("0")
    made.config["process"]["env"] += [
        "LD_PRELOAD=/proc/self/cwd/planted.so",
        "PYTHONPATH=/planted",
        "PYTHONHOME=/planted",
    ]
    (hook,) = [
        hook for hook in made.config["hooks"]["createRuntime"] if "oci-gpu-hook" in hook["path"]
    ]
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=/bin/bash"]
    done = run(installed, "crun", "v2", made.runs("/usr/bin/nvidia-smi"))
    assert done.code == 0, done.out + done.err


def test_a_link_put_where_a_node_was_just_made_opens_nothing_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container could that shares its root with the one that starts."""
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    secret.chmod(0o600)
    (tmp_path / "rootfs/dev").mkdir(parents=True)
    node = tmp_path / "rootfs/dev/nvidia0"
    mknod = posix.mknod

    def made_and_swapped(name: str, *words: int, dir_fd: int) -> None:
        mknod(name, *words, dir_fd=dir_fd)
        made.append(node.stat().st_mode & 0o7777)
        node.unlink()
        node.symlink_to(secret)

    made: list[int] = []
    monkeypatch.setattr(posix, "mknod", made_and_swapped)
    umask = os.umask(0)  # as apply.run sets it
    root = os.open(tmp_path / "rootfs", os.O_PATH)
    tree = mounts.Tree(root, ())
    try:
        devices.make(tree, "/dev/nvidia0", 195, 0, mode=0o666, uid=0, gid=0)
    finally:
        os.close(root)
        os.umask(umask)
    assert made == [0o666]
    assert secret.stat().st_mode & 0o7777 == 0o600
