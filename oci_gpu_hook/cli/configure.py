# SPDX-License-Identifier: Apache-2.0
"""``configure``: our runtime, or the folder of our hook, in an engine's settings; and out of them again."""

from __future__ import annotations

import difflib
import os
import re
import sys

import click

from oci_gpu_hook.cli import accelerators
from oci_gpu_hook.cli.options import host_root
from oci_gpu_hook.errors import LONGEST_LIST, ConfigError, UsageError, plain, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.enginekinds import BY_WORD, CONTAINERD, DOCKER, EngineKind
from oci_gpu_hook.node.engines.installed import MAX_SHARES, PROGRAM, RUNTIME
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.node.setup import configuration, daemonjson, enginefile
from oci_gpu_hook.request.settings import read_settings

# A link of the administrator's, for tools that look for this name in `docker info`, as devcontainers does.
_LINK = f"{PROGRAM.rpartition('/')[0]}/nvidia-container-runtime"
# Of a runtime, or of Swarm's resources, of whose name Docker makes a part of a variable's.  Docker refuses the first of
# the taken ones as a runtime's, and containerd's shims have names like the last.
_NAME, _TAKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"), re.compile(r"runc|crun|io\.containerd\..*")


@click.command()
@click.argument("engine", type=click.Choice([*BY_WORD]))
@click.option("--name", metavar="NAME", help=f"The runtime's name, such as nvidia.  [default: {RUNTIME}]")
@click.option("--set-as-default", "default", is_flag=True, help="For containers that name no runtime, too.")
@click.option("--cdi", is_flag=True, help="Turn the engine's own CDI on; with --remove, off again.")
@click.option("--swarm", metavar="NAME", help="Name the GPUs as Swarm's resources too; services ask for NAME=1.")
@click.option("--shares", metavar="N", type=click.IntRange(1, MAX_SHARES), help="With --swarm: name each GPU N times.")
@click.option("--user", is_flag=True, help="Your own rootless Docker or podman: the file below ~/.config.")
@click.option("--remove", "removes", is_flag=True, help="Take away what this command has written.")
@click.option("--dry-run", "dry", is_flag=True, help="Show the difference, and write nothing.")
@host_root
def configure(
    engine: str,
    name: str | None,
    default: bool,
    cdi: bool,
    swarm: str | None,
    shares: int | None,
    user: bool,
    removes: bool,
    dry: bool,
    host: HostRoot,
) -> None:
    """Name our runtime, or our hook's folder, in an engine's settings.

    docker gets the runtime in /etc/docker/daemon.json, where all else stays as it is.  The others get a file of ours,
    99-oci-gpu-hook: containerd the runtime, for pods (in k3s and RKE2 by their template); crio the folder, unless CRI-O
    looks there by itself, and with --name a runtime; podman the folder, as by its --hooks-dir, for rootless podman too,
    and with --set-as-default the runtime, behind which crun's containers keep their GPUs through 'podman update'.

    With --swarm docker gets this host's GPUs as node-generic-resources: by UUID, and those in MIG mode by their MIG
    devices.  With --shares N a GPU is named N times, as GPU-UUID-0 and so on; a MIG device is a share already, and is
    named once.  A task gets a whole name in DOCKER_RESOURCE_NAME, and so can tell which share it is.

    What others have written stays.  On a terminal the difference is shown.  No engine is restarted: the command says
    which must be.  --remove takes our runtime from daemon.json by every name, or by --name, and not Swarm's resources.
    """
    kind = BY_WORD[engine]
    given = {"--name": name is not None, "--set-as-default": default, "--cdi": cdi, "--user": user}
    given |= {"--swarm": swarm is not None, "--shares": shares is not None}
    _check_words(kind, [option for option, is_given in given.items() if is_given], name, swarm, removes=removes)
    program = _LINK if name == "nvidia" and host.real(_LINK) == PROGRAM else PROGRAM
    asked = enginefile.WantedRuntime(RUNTIME if name is None else name, program, default, cdi, name is not None)
    path, service = configuration.containerds_file(host) if kind == CONTAINERD else (kind.ours, kind.unit)
    file = enginefile.read_settings_file(host, _users(kind) if user else path, is_users=user)
    added, removed = configuration.WAYS[kind]
    change = (removed if removes else added)(host, file, asked)
    if not (removes or dry) and program in change.text + change.by_hand and host.stat(program) is None:
        hint = "install the package: on a node with CRI-O a DaemonSet or a MachineConfig installs only the hook"
        raise ConfigError(f"{program} is not there: no container would start by it", hint)
    if change.by_hand:
        click.echo(change.by_hand, nl=False)
        raise ConfigError(change.told[0])
    if swarm is not None:
        accelerators.check_is_server(host)
        settings = read_settings(None, None, host.path)
        named = daemonjson.devices(hardware.nvidia(host, settings.driver_root), shares)
        change = daemonjson.with_resources(host, file, change, settings, swarm, named)
    # SIGHUP turns no CDI on, reads no resources, keeps a default runtime that is gone; rootlesskit forwards none.
    reloads = kind == DOCKER and not (cdi or swarm or removes)
    verb = "--user restart" if user else "reload" if reloads else "restart"
    _put(host, file, change, dry, f"so that it holds: systemctl {verb} {service}" if service else "")


def _check_words(kind: EngineKind, given: list[str], name: str | None, swarm: str | None, *, removes: bool) -> None:
    unknown = [option for option in given if option not in kind.options.split()]
    if unknown:
        raise UsageError(f"{kind.word} has no {unknown[0]}", f"it has {', '.join(kind.options.split())}")
    if name is not None and (not _NAME.fullmatch(name) or _TAKEN.fullmatch(name)):
        raise UsageError(f"--name is {quoted(name)}, which cannot name our runtime", "such as nvidia")
    if swarm is None and "--shares" in given:
        raise UsageError("--shares is for --swarm", "such as --swarm GPU")
    if swarm is not None and removes:
        raise UsageError("--swarm cannot be given with --remove", "an editor takes node-generic-resources away")
    if swarm is not None and not _NAME.fullmatch(swarm):
        raise UsageError(f"--swarm is {quoted(swarm)}, which is not a resource's name", "such as GPU")


def _users(kind: EngineKind) -> str:
    if os.geteuid() == 0:
        raise UsageError("--user is for a user's own rootless engine, and you are root", "run it as that user")
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    folder = folder if folder[:1] == "/" else os.path.abspath(os.path.expanduser("~/.config"))
    # podman 6 reads one drop-in of a name: a user's would be in the place of root's.
    return f"{folder}/{kind.ours.removeprefix('/etc/').replace('-hook.conf', '-hook.user.conf')}"


def _put(host: HostRoot, file: enginefile.EngineFile, change: enginefile.Change, dry: bool, again: str) -> None:
    told = list(change.told)
    if change.text == file.text:
        click.echo(f"nothing to do in {file.path}")
    else:
        if dry or sys.stdout.isatty():
            before, after = [it.removesuffix("\n").split("\n") if it else [] for it in (file.text, change.text)]
            names = [file.path if lines else "/dev/null" for lines in (before, after)]
            for line in difflib.unified_diff(before, after, names[0], names[1], lineterm=""):
                click.echo("\t".join([plain(part, LONGEST_LIST) for part in line.split("\t")]))
        if not dry:
            enginefile.write(host, file, change.text)
            click.echo(f"{'wrote' if change.text else 'removed'} {file.path}")
            told += [again] if again else []
    for sentence in told:
        click.echo(sentence, err=True)
