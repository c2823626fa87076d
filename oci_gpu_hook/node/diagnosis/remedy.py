# SPDX-License-Identifier: Apache-2.0
"""Remedies: commands that people paste, made from words; of one container in the words of the engine that runs it.

Each word is quoted for the shell.  A text that a container, a user or a process has chosen must not be a word, unless
`is_name` holds for it: a name may begin with a dash, and a path may lead to what its owner wants root to run.  So a
user's container is that user's to start again.  Must not name a command of another engine.  Pure.
"""

from __future__ import annotations

import os
import re
import shlex

from oci_gpu_hook.errors import plain
from oci_gpu_hook.node.engines.containers import SHORT_ID, Running
from oci_gpu_hook.node.engines.enginekinds import BY_NAME, CONTAINERD, CRIO, LXC, LXC_WAYS, VARIABLE, EngineKind

# An id, or a name as podman and Docker take it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}", re.ASCII)


class Remedy(str):
    """What fixes a fault; "" for nothing.  Made by the functions below alone; commands: each for the shell, to be run
    if the one before has succeeded; () if it is not of commands.
    """

    commands: tuple[str, ...] = ()
    note = ""


NOTHING = Remedy()


def _made(commands: tuple[str, ...], note: str) -> Remedy:
    line = " && ".join(commands)
    made = Remedy(f"{line}  # {note}" if line and note else line or note)
    made.commands, made.note = commands, note
    return made


def command(*words: str, note: str = "") -> Remedy:
    """note: a text of ours for its reader, which the shell takes for a comment."""
    return _made((shlex.join(words),), note)


def then(*parts: Remedy) -> Remedy:
    """The commands of these, and at their end notes and words: before it they would hide the commands behind them."""
    notes = "; ".join([word for it in parts if (word := it.note if it.commands else it)])
    return _made(tuple([line for it in parts for line in it.commands]), notes)


def as_root(remedy: Remedy) -> Remedy:
    """With sudo if this process is not root's: the commands are root's own."""
    if os.geteuid() == 0 or not remedy.commands:
        return remedy
    return _made(tuple([f"sudo {line}" for line in remedy.commands]), remedy.note)


def in_words(hint: str) -> Remedy:
    return Remedy(plain(hint))


DOCTOR = command("oci-gpu-hook", "doctor")
REFRESH = command("oci-gpu-hook", "inventory", "refresh")
REBOOT = command("systemctl", "reboot")
# By the distribution's package manager.
UPGRADE_KERNEL = {
    "dnf": then(command("dnf", "upgrade", "kernel"), REBOOT),
    "apt": then(command("apt", "full-upgrade"), REBOOT),
}
ACCEPTED = command("oci-gpu-hook", "info", "--settings", note="accept-environment, accept-volume-mounts")
# What the driver has told the kernel's log.
KERNELS_LOG = command("journalctl", "--dmesg", "--grep=NVRM|Xid")


def reread(kind: EngineKind) -> Remedy:
    """What makes an engine read its settings again; `NOTHING` if it does so at each start of a container."""
    return command("systemctl", "restart", kind.unit) if kind.unit else NOTHING


def roots_alone(*paths: str) -> Remedy:
    return then(command("chown", "root:", *paths), command("chmod", "go-w", *paths))


# What installs a file, also if its version is there already; no repository has our packages.
_INSTALLS = {
    "dnf": ("make rpm", "rpm --upgrade --replacepkgs", ".build/rpm/RPMS/noarch/{}-[0-9]*.rpm"),
    "apt": ("make deb", "apt install --reinstall", "./.build/deb/{}_*.deb"),
}


def install(tool: str, *further: str) -> Remedy:
    """Make and install our package, and further ones; it takes over what 'make install' has put there."""
    make, verb, file = _INSTALLS[tool]
    files = [file.format(name) for name in ("oci-gpu-hook", *further)]
    return _made((make, " ".join([verb, *files])), "in this program's sources")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _ways(who: Running) -> tuple[Remedy, Remedy, Remedy]:
    """What starts it again; what starts it if it has stopped, or tells why; what ends its pause."""
    id, kind, runtime = who.id, BY_NAME[who.called.engine], who.runtime
    if kind == LXC:
        return _of_lxc(who, 0) or in_words("start it again"), NOTHING, _of_lxc(who, 1) or in_words("let it run on")
    resumed = command(runtime, "resume", id) if runtime else in_words("let it run on")
    if not is_name(id):
        return NOTHING, NOTHING, NOTHING
    if _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        return command("crictl", "stop", id[:SHORT_ID]), command("crictl", "inspect", id[:SHORT_ID]), resumed
    if kind.request:
        name = who.called.full or who.called.name
        verbs = ("restart", "start", "unpause")
        again, run, resumed = [command(kind.request[0], it, name if is_name(name) else id) for it in verbs]
        return again, run, resumed
    if kind == CONTAINERD:
        tasks = (*_ctr(who), "tasks")
        run = command(*tasks, "start", "--detach", id)
        return then(command(*tasks, "delete", "--force", id), run), run, command(*tasks, "resume", id)
    if not runtime:
        return NOTHING, NOTHING, resumed
    run = command(runtime, "run", "--detach", "--bundle", who.bundle, id)
    return then(command(runtime, "delete", "--force", id), run), run, resumed


def restart(who: Running) -> Remedy:
    return _of_owner(who, "start it again") or _ways(who)[0] or command("kill", str(who.pid))


def start(who: Running) -> Remedy:
    return _of_owner(who, "start it") or _ways(who)[1] or in_words("start it")


def resume(who: Running) -> Remedy:
    return _of_owner(who, "let it run on") or _ways(who)[2]


def ask(who: Running) -> Remedy:
    if _is_the_kubelets(who):
        note = f"{VARIABLE} in its env, or nvidia.com/gpu in its limits"
        return command("kubectl", "replace", "--force", "-f", "POD.yaml", note=note)
    kind = BY_NAME[who.called.engine]
    if kind.request:
        return command(*kind.request)
    if kind == CONTAINERD:
        return command(*_ctr(who), "run", "--env", VARIABLE, "...")
    if kind == LXC:
        return then(_of_lxc(who, 2), in_words("oci-gpu-hook-hpc(7) says how"))
    file = f"{who.bundle}/config.json" if who.bundle and who.owner == os.geteuid() else "config.json"
    return command("vi", file, note=f"{VARIABLE} in process.env")


def _of_lxc(who: Running, way: int) -> Remedy:
    """In the words of what has started it; Incus and LXD call it PROJECT_NAME where its project is not the default."""
    project, _, name = who.id.rpartition("_")
    if who.runtime not in LXC_WAYS or not is_name(who.id) or not is_name(name):
        return NOTHING
    called = f"{name} --project={project}" if project and who.runtime != "lxc-start" else who.id
    return then(*[command(*line.split()) for line in LXC_WAYS[who.runtime][way].format(called).split(" && ")])


def _of_owner(who: Running, does: str) -> Remedy:
    return in_words(f"the user {who.owner} must {does}") if who.owner != os.geteuid() else NOTHING


def _is_the_kubelets(who: Running) -> bool:
    return who.called.engine == CRIO.name or bool(who.called.pod)


def _ctr(who: Running) -> tuple[str, ...]:
    """containerd's namespace: a bundle's folder is FOLDER/NAMESPACE/ID."""
    namespace = who.bundle.rpartition("/")[0].rpartition("/")[2]
    return "ctr", "--namespace", namespace if is_name(namespace) else "default"
