# SPDX-License-Identifier: Apache-2.0
"""The device cgroup on the real kernel, v2 and v1: opened for exactly the given devices, and taken back.

Each test stands in a mount namespace of its own where /sys/fs/cgroup is what it wants.  A node without a driver tells
what the device cgroup says: open gives ENXIO where it allows, EPERM where not.  Must not leave a cgroup or a sysctl
behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from errno import EACCES, ENOENT, ENXIO, EPERM
from pathlib import Path

import pytest

from oci_gpu_hook.changes import cgroup_v1, cgroup_v2
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.container import devicecgroup
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.formats import devicefilter
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.kernel import bpf, syscalls
from tests.gpunode import boot
from tests.integration.engines import printed, until

Maker = Callable[..., Path]

ROOT = Path("/sys/fs/cgroup")
BASE = f"test-{os.getpid()}"
ID = "0123456789abcdef" * 4
CLONE_NEWNS = 0x00020000

GPU0 = DeviceRule("c", 195, 0, "rw")
CONTROL = DeviceRule("c", 195, 255, "rw")
SPEC_RULES = (DeviceRule("a", None, None, "rwm", allow=False),)
DEVICES = {"gpu0": (195, 0), "gpu1": (195, 1), "control": (195, 255), "null": (1, 3), "kmsg": (1, 11)}  # fmt: skip

DENY_ALL = bytes.fromhex("b4000000000000009500000000000000")
ALLOW_ALL = bytes.fromhex("b4000000010000009500000000000000")
RUNTIME_LIKE = devicefilter.program((*SPEC_RULES, *devicefilter.runtime_defaults()))


@pytest.fixture
def own_mounts() -> Iterator[None]:
    """This process in a mount namespace of its own, and afterwards back at home."""
    home, folder = os.open("/proc/self/ns/mnt", os.O_RDONLY), os.getcwd()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        pytest.fail(f"this test needs a mount namespace: {os.strerror(ctypes.get_errno())}")
    try:
        printed("mount", "--make-rprivate", "/")
        printed("umount", "--recursive", str(ROOT))
        yield
    finally:
        syscalls.setns(home, syscalls.CLONE_NEWNS)
        os.close(home)
        os.chdir(folder)


@pytest.fixture
def v2(own_mounts: None) -> None:
    printed("mount", "-t", "cgroup2", "none", str(ROOT))


@pytest.fixture
def v1(own_mounts: None) -> None:
    printed("mount", "-t", "tmpfs", "none", str(ROOT))
    (ROOT / "devices").mkdir()
    printed("mount", "-t", "cgroup", "-o", "devices", "none", str(ROOT / "devices"))


@pytest.fixture
def nodes(own_mounts: None, tmp_path: Path) -> Path:
    """A folder of device nodes, none of which has a driver but null and kmsg."""
    printed("mount", "-t", "tmpfs", "none", str(tmp_path))
    for name, numbers in DEVICES.items():
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o666, os.makedev(*numbers))
    return tmp_path


@pytest.fixture
def group(own_mounts: None) -> Iterator[Maker]:
    """Makes cgroups, and removes them with all that is below them."""
    hierarchies = set()

    def make(name: str, hierarchy: Path = ROOT) -> Path:
        hierarchies.add(hierarchy)
        path = hierarchy / BASE / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    yield make
    for hierarchy in hierarchies:
        boot.remove(str(hierarchy / BASE))


@pytest.fixture
def container(v2: None, group: Maker) -> DeviceCgroup:
    path = str(group(f"libpod-{ID}.scope"))
    return DeviceCgroup("v2", path, path, "")


@pytest.fixture
def old_container(v1: None, group: Maker) -> DeviceCgroup:
    """A container's cgroup on a v1 host, with the rules of a runtime in a small way."""
    path = group(ID, ROOT / "devices")
    (path / "devices.deny").write_text("a")
    (path / "devices.allow").write_text("c 1:3 rwm")
    return DeviceCgroup("v1", str(path), str(path), "")


def open_for(found: DeviceCgroup, *rules: DeviceRule) -> Undo:
    """Open a cgroup as a start opens it; gives what takes it back."""
    undo, levels = Undo(), devicecgroup.levels(found.path, found.top)
    try:
        if found.version == "v1":
            cgroup_v1.allow(levels, rules, undo)
        else:
            assert cgroup_v2.allow(levels, rules, SPEC_RULES, undo) == ""
    except OSError:
        undo.take_back()
        raise
    return undo


def attempt(folder: str | Path, action: Callable[[], object]) -> int:
    """The errno that `action` ends with in a process that is in the cgroup; 0 where it succeeds."""
    child = os.fork()
    if not child:
        result = 255
        try:
            Path(folder, "cgroup.procs").write_text("0")
            action()
            result = 0
        except OSError as err:
            result = err.errno or 255
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def opens(folder: str | Path, node: Path, flags: int = os.O_RDWR) -> int:
    return attempt(folder, lambda: os.close(os.open(node, flags)))


def makes(folder: str | Path, node: Path, kind: int = stat.S_IFCHR) -> int:
    return attempt(folder, lambda: os.mknod(node, kind | 0o600, os.makedev(195, 0)))


def loaded(instructions: bytes) -> int:
    return bpf.prog_load(instructions, name="")


def attach(path: str, *programs: bytes, flags: int = bpf.BPF_F_ALLOW_MULTI) -> list[int]:
    cgroup_fd = os.open(path, os.O_RDONLY)
    for instructions in programs:
        prog_fd = loaded(instructions)
        bpf.prog_attach(cgroup_fd, prog_fd, attach_flags=flags)
        os.close(prog_fd)
    os.close(cgroup_fd)
    return attached(path)


def attached(path: str) -> list[int]:
    cgroup_fd = os.open(path, os.O_RDONLY)
    try:
        return list(bpf.prog_query(cgroup_fd)[1])
    finally:
        os.close(cgroup_fd)


def instructions_of(prog_id: int) -> bytes | None:
    prog_fd = bpf.prog_get_fd_by_id(prog_id)
    try:
        return bpf.prog_insns(prog_fd)
    finally:
        os.close(prog_fd)


def open_descriptors() -> set[str]:
    return {fd for fd in os.listdir("/proc/self/fd") if Path("/proc/self/fd", fd).exists()}


# --- cgroup v2


def test_only_the_given_devices_open_as_they_are_given(container: DeviceCgroup, nodes: Path) -> None:
    path = container.path
    attach(path, DENY_ALL)
    assert opens(path, nodes / "gpu0") == EPERM
    open_for(container, GPU0, CONTROL._replace(access="r"))
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY):
        assert opens(path, nodes / "gpu0", flags) == ENXIO
    assert opens(path, nodes / "control", os.O_RDONLY) == ENXIO
    assert opens(path, nodes / "control") == EPERM
    assert opens(path, nodes / "gpu1") == opens(path, nodes / "null") == EPERM
    assert makes(path, nodes / "new") == makes(path, nodes / "new", stat.S_IFBLK) == EPERM


def test_undo_puts_the_runtimes_own_program_back(container: DeviceCgroup, nodes: Path) -> None:
    path = container.path
    before = attach(path, RUNTIME_LIKE)
    descriptors = open_descriptors()
    undo = open_for(container, GPU0, CONTROL)
    (prog_id,) = attached(path)
    assert instructions_of(prog_id) == devicefilter.prefix([GPU0, CONTROL]) + RUNTIME_LIKE
    assert opens(path, nodes / "gpu0") == opens(path, nodes / "control") == ENXIO
    assert opens(path, nodes / "null") == makes(path, nodes / "new") == 0
    assert opens(path, nodes / "kmsg") == EPERM
    # They stay open until the process ends, for an undo may need them.
    held = open_descriptors() - descriptors
    assert held and all(fcntl.fcntl(int(fd), fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in held)
    undo.take_back()
    assert attached(path) == before
    assert opens(path, nodes / "gpu0") == EPERM
    assert opens(path, nodes / "null") == 0


def test_as_many_programs_as_the_kernel_can_replace(container: DeviceCgroup, nodes: Path) -> None:
    long = devicefilter.program([DeviceRule("c", 7, minor, "rw") for minor in range(700)])
    assert len(long) > 4096 * 8
    before = attach(container.path, long, *[RUNTIME_LIKE] * 62)
    undo = open_for(container, GPU0)
    after = attached(container.path)
    assert len(before) == len(after) == 63 and not set(before) & set(after)
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "null") == EPERM
    undo.take_back()
    assert attached(container.path) == before


@pytest.mark.parametrize("flags", [0, 1], ids=["exclusive", "BPF_F_ALLOW_OVERRIDE"])
def test_a_program_that_is_attached_otherwise_is_replaced(container: DeviceCgroup, nodes: Path, flags: int) -> None:
    before = attach(container.path, RUNTIME_LIKE, flags=flags)
    undo = open_for(container, GPU0)
    assert len(attached(container.path)) == 1
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "gpu1") == EPERM
    undo.take_back()
    assert attached(container.path) == before


def test_a_scope_and_its_sub_cgroup_are_both_opened(container: DeviceCgroup, nodes: Path) -> None:
    scope, leaf = Path(container.path), Path(container.path, "container")
    leaf.mkdir()
    programs = {str(scope.parent): ALLOW_ALL, str(scope): DENY_ALL, str(leaf): RUNTIME_LIKE}
    before = {path: attach(path, program) for path, program in programs.items()}
    undo = open_for(container._replace(path=str(leaf)), GPU0)
    assert opens(leaf, nodes / "gpu0") == ENXIO
    assert opens(leaf, nodes / "null") == EPERM
    assert attached(str(scope.parent)) == before[str(scope.parent)]
    undo.take_back()
    assert {path: attached(path) for path in programs} == before


def test_no_program_at_all_is_said_and_left_so(container: DeviceCgroup) -> None:
    reason = "the device cgroup is left alone: no device program restricts the container's cgroup"
    assert cgroup_v2.allow([container.path], (GPU0,), SPEC_RULES, Undo()) == reason
    assert attached(container.path) == []
    # Those above are not its own.
    attach(str(Path(container.path).parent), DENY_ALL)
    assert cgroup_v2.allow([container.path], (GPU0,), SPEC_RULES, Undo()) == reason


def test_replacing_leaves_no_window(container: DeviceCgroup, nodes: Path) -> None:
    """What is denied never opens, and what is allowed never fails, while programs change."""
    attach(container.path, RUNTIME_LIKE)
    child = os.fork()
    if not child:
        rounds = wrong = 0
        Path(container.path, "cgroup.procs").write_text("0")
        running = [True]
        signal.signal(signal.SIGTERM, lambda *_: running.clear())
        while running:
            rounds += 1
            try:
                os.close(os.open(nodes / "null", os.O_RDWR))
                os.open(nodes / "gpu1", os.O_RDWR)
            except OSError as err:
                if err.errno != EPERM or err.filename != str(nodes / "gpu1"):
                    wrong += 1
        (nodes / "result").write_text(f"{rounds} {wrong}")
        os._exit(0)
    until(lambda: str(child) in Path(container.path, "cgroup.procs").read_text().split())
    time.sleep(0.05)
    for _ in range(200):
        open_for(container, GPU0).take_back()
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    rounds, wrong = map(int, (nodes / "result").read_text().split())
    assert rounds > 200
    assert wrong == 0


# --- cgroup v2: what crun has pinned for systemd

PINNED = "crun/libpod_scope"


@pytest.fixture
def pins(container: DeviceCgroup, nodes: Path) -> Path:
    """A root with a folder of pinned programs, as crun makes it: one that is attached to the container's cgroup."""
    printed("mount", "-t", "bpf", "none", str(nodes))
    (nodes / "crun").mkdir(0o700)
    (prog_id,) = attach(container.path, RUNTIME_LIKE)
    bpf.obj_pin(bpf.prog_get_fd_by_id(prog_id), str(nodes / PINNED))
    return nodes


def keep(container: DeviceCgroup, root: Path) -> tuple[str, Undo]:
    """Open the cgroup; gives what is said of the pin, and what takes all back."""
    pin, undo = cgroup_v2.pin_at(os.open(root, os.O_PATH), f"/{PINNED}"), Undo()
    return cgroup_v2.allow([container.path], (GPU0,), SPEC_RULES, undo, pin), undo


def pinned(root: Path) -> int:
    return bpf.prog_id(bpf.obj_get(str(root / PINNED)))


def test_what_crun_has_pinned_becomes_ours_and_again_cruns(container: DeviceCgroup, pins: Path) -> None:
    before = pinned(pins)
    left = pins / f"{PINNED}-oci-gpu-hook"
    bpf.obj_pin(loaded(DENY_ALL), str(left))  # by a start that was killed
    said, undo = keep(container, pins)
    assert (said, [pinned(pins)]) == ("", attached(container.path))
    assert not left.exists()
    # A second hook of the same start finds the first one's.
    assert keep(container, pins)[0] == ""
    assert [pinned(pins)] == attached(container.path)
    undo.take_back()
    assert pinned(pins) == before


def another_program(root: Path) -> None:
    (root / PINNED).unlink()
    bpf.obj_pin(loaded(RUNTIME_LIKE), str(root / PINNED))


def does(*commands: str) -> Callable[[Path], object]:
    """Shell commands in the root of the pins; $PIN is ours."""
    return lambda root: printed("env", "-C", str(root), f"PIN={PINNED}", "sh", "-euc", "; ".join(commands))


CHANGES = {
    "another program": (another_program, "it is none of the container's cgroup"),
    "a link": (does("mv $PIN of_another", "ln -s ../of_another $PIN"), "it is not a program"),
    "a folder": (does("rm $PIN", "mkdir $PIN"), "it is not a program"),
    "nothing": (does("rm $PIN"), "No such file or directory"),
    "a user's folder": (
        does("chown 1000:1000 crun"),
        "'crun' is user 1000's, in a folder that others than root may write to",
    ),
    "a folder for all": (does("chmod 777 crun"), "'libpod_scope' lies in a folder that others than root may write to"),
    "a linked folder": (
        does("mv crun real", "chmod 1777 .", "ln -s real crun"),
        "'crun' is a link, in a folder that others than root may write to",
    ),
}


def look(root: Path) -> dict[Path, tuple[int, ...]]:
    """What is there; not when it was read, which this does too."""
    found = {path: path.lstat() for path in root.rglob("*")}
    return {path: (it.st_ino, it.st_mode, it.st_uid, it.st_gid, it.st_ctime_ns) for path, it in found.items()}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_no_other_pin_is_changed(container: DeviceCgroup, pins: Path, change: Callable[[Path], None], why: str) -> None:
    change(pins)
    before = look(pins)
    said = keep(container, pins)[0]
    assert said.startswith("systemd may take the GPU away later: the program libpod_scope that crun has pinned")
    assert why in said
    assert look(pins) == before
    assert opens(container.path, pins / "gpu0") != EPERM


# --- cgroup v2: what can go wrong


def test_a_failure_midway_is_undone(container: DeviceCgroup, nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = attach(container.path, RUNTIME_LIKE, RUNTIME_LIKE)
    real, calls = bpf.prog_attach, [0]

    def second_fails(*descriptors: int, **options: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise syscalls.SyscallError(EPERM, "bpf", "BPF_PROG_ATTACH")
        real(*descriptors, **options)

    monkeypatch.setattr(bpf, "prog_attach", second_fails)
    with pytest.raises(OSError, match="bpf BPF_PROG_ATTACH: Operation not permitted"):
        open_for(container, GPU0)
    assert attached(container.path) == before
    assert opens(container.path, nodes / "gpu0") == EPERM


def test_a_newer_program_is_replaced_too(container: DeviceCgroup, nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd does at daemon-reload: when we come to replace its program, there is a new one."""
    attach(container.path, DENY_ALL)
    real, calls = bpf.prog_get_fd_by_id, [0]

    def raced(prog_id: int) -> int:
        calls[0] += 1
        if calls[0] == 1:
            old_fd, new_fd = real(prog_id), loaded(RUNTIME_LIKE)
            cgroup_fd = os.open(container.path, os.O_RDONLY)
            flags = bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE
            bpf.prog_attach(cgroup_fd, new_fd, attach_flags=flags, replace_fd=old_fd)
            for fd in (cgroup_fd, new_fd, old_fd):
                os.close(fd)
            until(lambda: is_gone(prog_id))  # the kernel frees it after a grace period
        return real(prog_id)

    def is_gone(prog_id: int) -> bool:
        try:
            os.close(real(prog_id))
        except OSError as err:
            assert err.errno == ENOENT
            return True
        return False

    monkeypatch.setattr(bpf, "prog_get_fd_by_id", raced)
    open_for(container, GPU0)
    assert calls[0] == 2
    assert len(attached(container.path)) == 1
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "null") == 0


def test_others_without_end_are_an_error(container: DeviceCgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(container.path, DENY_ALL)
    real = bpf.prog_query

    def busy(cgroup_fd: int, *, query_flags: int = 0) -> tuple[int, tuple[int, ...]]:
        monkeypatch.setattr(bpf, "prog_query", real)
        attach(container.path, DENY_ALL)
        monkeypatch.setattr(bpf, "prog_query", busy)
        return real(cgroup_fd, query_flags=query_flags)

    monkeypatch.setattr(bpf, "prog_query", busy)
    with pytest.raises(OSError, match=r"others change .* too: Device or resource busy"):
        open_for(container, GPU0)


def test_undo_leaves_what_others_have_changed_since(container: DeviceCgroup) -> None:
    attach(container.path, RUNTIME_LIKE)
    first = open_for(container, GPU0)
    second = open_for(container, CONTROL)
    after = attached(container.path)
    first.take_back()
    assert attached(container.path) == after
    os.rmdir(container.path)
    second.take_back()


def test_what_the_verifier_refuses_is_an_error() -> None:
    read_of_r2 = bytes.fromhex("bc200000000000009500000000000000")
    with pytest.raises(syscalls.SyscallError) as caught:
        bpf.prog_load(read_of_r2, name="oci_gpu_hook")
    assert str(caught.value) == "bpf BPF_PROG_LOAD oci_gpu_hook: Permission denied"
    assert caught.value.errno == EACCES


@pytest.fixture
def hardened(request: pytest.FixtureRequest) -> Iterator[None]:
    """net.core.bpf_jit_harden=2, with constants hidden from everybody where kptr_restrict is 2."""
    wanted = {Path("/proc/sys/net/core/bpf_jit_harden"): "2", Path("/proc/sys/kernel/kptr_restrict"): request.param}
    before = {path: path.read_text() for path in wanted}
    try:
        for path, value in wanted.items():
            path.write_text(value)
        yield
    finally:
        for path, value in before.items():
            path.write_text(value)


@pytest.mark.parametrize("hardened", ["1", "2"], indirect=True, ids=["blinded", "hidden"])
def test_a_program_that_is_not_shown_is_rebuilt_from_the_rules(
    container: DeviceCgroup, nodes: Path, hardened: None, request: pytest.FixtureRequest
) -> None:
    path = container.path
    # More open than config.json says: what is in force afterwards was rebuilt, not copied.
    before = attach(path, ALLOW_ALL)
    shown = instructions_of(before[0])
    if request.node.callspec.id == "hidden":
        assert shown is None
    else:
        assert shown is not None and not devicefilter.is_loadable(shown)
    undo = Undo()
    assert cgroup_v2.allow([path], (GPU0,), (*SPEC_RULES, CONTROL), undo) == ""
    assert opens(path, nodes / "gpu0") == opens(path, nodes / "control") == ENXIO
    assert opens(path, nodes / "gpu1") == opens(path, nodes / "kmsg") == EPERM
    assert opens(path, nodes / "null") == 0
    undo.take_back()
    assert attached(path) == before
    assert opens(path, nodes / "kmsg", os.O_RDONLY | os.O_NONBLOCK) == 0


# --- cgroup v1


def listed(folder: str | Path) -> str:
    return Path(folder, "devices.list").read_text()


def test_v1_undo_takes_only_what_was_ours(v1: None, group: Maker, nodes: Path) -> None:
    """Not even from a container that may use everything."""
    allowing = ("", "c *:* rwm", "c 195:* rw", "c 195:0 rwm")
    # The kernel does not add up entries, and adds to one of the same numbers.
    others = ("b *:* rwm", "c *:* m", "c 195:* r", "c 195:0 r", "c 195:1 rw", "c 195:* w\nc 195:0 r")
    for number, entry in enumerate((*allowing, *others)):
        path = group(str(number), ROOT / "devices")
        if entry:
            (path / "devices.deny").write_text("a")
        for rule in entry.splitlines():
            (path / "devices.allow").write_text(rule)
        before = listed(path)
        assert before.startswith(entry or "a *:* rwm\n")
        undo = open_for(DeviceCgroup("v1", str(path), str(path), ""), GPU0)
        assert undo.mark() == (entry in others), "nothing is written where it is allowed"
        assert opens(path, nodes / "gpu0") == ENXIO, entry
        undo.take_back()
        assert listed(path) == before, entry


def test_v1_the_cgroup_above_can_forbid_it(old_container: DeviceCgroup, nodes: Path) -> None:
    leaf = Path(old_container.path, "container")
    leaf.mkdir()
    both = old_container._replace(path=str(leaf))
    undo = open_for(both, GPU0)
    assert opens(leaf, nodes / "gpu0") == ENXIO
    undo.take_back()
    assert opens(leaf, nodes / "gpu0") == EPERM
    with pytest.raises(OSError) as caught:
        open_for(both._replace(top=str(leaf)), GPU0)
    assert str(caught.value) == (f"write 'c 195:0 rw' to {leaf}/devices.allow: Operation not permitted")
