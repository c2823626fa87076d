# SPDX-License-Identifier: Apache-2.0
"""What engines' settings need so that containers get GPUs: our runtime, or the folder of our registration.

Docker's daemon.json gets entries (`daemonjson`), every other engine a drop-in of our own.  What others have written is
never changed: the administrator is told what stands in the way.  Must not write a file.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import PurePosixPath
from typing import Any

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.engines.enginekinds import CONTAINERD, CRIO, DOCKER, K0S_MERGED, PODMAN, EngineKind
from oci_gpu_hook.node.engines.installed import HOOKS_FOLDER, Files
from oci_gpu_hook.node.setup import daemonjson
from oci_gpu_hook.node.setup.enginefile import FIX, Change, EngineFile, WantedRuntime, others
from oci_gpu_hook.request.settings import SETTINGS

Table = tuple[str, dict[str, Any]]

_CONFIG = CONTAINERD.files[0]
# k0s keeps its containerd's settings in the first; the second is there once it runs, until a reset or a boot.
_K0S, _K0S_RUNS = "/etc/k0s/", "/run/k0s"
# At each start k3s and RKE2 write config.toml of their containerd there: by a template, if there is one.
_RANCHERS = re.compile(r"(/var/lib/rancher/(k3s|rke2)/agent/etc/containerd)/config(-v3)?\.toml(\.tmpl)?")
_BASE = '{{ template "base" . }}\n'
_MARK = "# Written by 'oci-gpu-hook configure {}', whose --remove takes this file away.\n"
_SHIM = "io.containerd.runc.v2"
# By the version of containerd's files: the plugin that runs pods.
_PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def containerds_file(host: HostRoot) -> tuple[str, str]:
    """Our file for containerd, a drop-in or a template of k3s or RKE2; and the units to restart, "" for none."""
    for path, values in installed.contents(host, CONTAINERD):
        found = _RANCHERS.fullmatch(path)
        if found and isinstance(values, dict):
            return f"{found[1]}/config{'-v3' if values.get('version') == 3 else ''}.toml.tmpl", f"'{found[2]}*'"
        if path == f"{_K0S}containerd.toml" and host.stat(_K0S_RUNS) is not None:
            return f"{_K0S}containerd.d/{posixpath.basename(CONTAINERD.ours)}", ""
    return CONTAINERD.ours, CONTAINERD.unit


def _rancher(host: HostRoot, file: EngineFile, asked: WantedRuntime, folder: str, engine: str) -> Change:
    """A template for k3s or RKE2: their own, and a runtime like their default one, but by our program, if missing."""
    # Since 2026 their own template imports a folder of drop-ins beside config.toml, which is the first of these.
    files = [item for item in _settings(host, CONTAINERD, file) if item[0].startswith(f"{folder}/")]
    plugin = _PLUGINS[3 if files[0][1].get("version") in (3, 4) else 2]
    tables, told = _runtime(host, files, plugin, asked)
    if asked.default and _merged(files).get(f"plugins.{plugin}.containerd.default_runtime_name") != asked.name:
        told.append(f"for each pod: default-runtime: {asked.name} in /etc/rancher/{engine}/config.yaml")
    if not tables:
        return Change(file.text, (f"{engine} has it by {', '.join(dict(files))}", *told))
    if asked.name == "nvidia":
        # Twice the same table would keep containerd from starting.
        why = f"{engine} has a runtime of this name once there is a program nvidia-container-runtime"
        raise ConfigError(why, "make a link of that name to oci-gpu-runtime, or give ours another --name")
    return _drop_in(CONTAINERD.word, file, [], tables, told, _BASE)


def containerd(host: HostRoot, file: EngineFile, asked: WantedRuntime) -> Change:
    rancher = _RANCHERS.fullmatch(file.path)
    if rancher:
        return _rancher(host, file, asked, rancher[1], rancher[2])
    config = f"{_K0S}containerd.toml" if file.path.startswith(_K0S) else _CONFIG
    files = [item for item in _settings(host, CONTAINERD, file) if not item[0].startswith("/var/lib/rancher/")]
    files = [item for item in files if item[0].startswith(_K0S) == (config != _CONFIG)]
    main = dict(files).get(config)
    if main is None:
        if host.stat(config) is not None:
            raise ConfigError(f"{config} cannot be read", "run it as root; it must be a regular file")
        made = f"make it: containerd config default >{config}"
        hint = "MicroK8s needs a link: oci-gpu-hook-kubernetes(7)" if host.stat("/snap/bin/microk8s") else made
        raise ConfigError(f"there is no {config} to read drop-ins", hint)
    version = main.get("version", 1)
    if version not in [*_PLUGINS]:
        raise ConfigError(f"{config} has version {quoted(version)}", "bring it up to date: containerd config migrate")
    plugin, shown = f"plugins.{_PLUGINS[version]}", f'plugins."{_PLUGINS[version]}"'
    merged = _merged(files)
    tables: list[Table] = []
    # On by itself since containerd 2.
    if asked.cdi and version == 2 and not merged.get(f"{plugin}.enable_cdi"):
        tables.append((shown, {"enable_cdi": True, "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"]}))
    if asked.default and merged.get(f"{plugin}.containerd.default_runtime_name") != asked.name:
        tables.append((f"{shown}.containerd", {"default_runtime_name": asked.name}))
    ours, told = _runtime(host, files, _PLUGINS[version], asked)
    tables += ours
    held = [path for path, values in files if any([key.startswith(f"{plugin}.") for key in values])]
    if not tables:
        return Change(file.text, (f"containerd has it by {', '.join(held)}",))
    found = main.get("imports")
    imports = [str(item) for item in found] if isinstance(found, list) else []
    read = [posixpath.join(posixpath.dirname(config), item) for item in imports]
    if version == 2 and held and K0S_MERGED not in read:
        # containerd 1 takes all settings of a plugin from the last file that has some (containerd's issue 5837).
        why = f"containerd 1 would lose what {held[0]} has of this plugin by a drop-in: add these lines to its tables"
        newer = "with containerd 2 bring that file up to date first: 'containerd config migrate' prints it"
        return Change(file.text, (f"{why}; {newer}",), _toml(tables))
    if version == 2:
        # Nor does it keep the runtime that it has by itself.
        tables.append((f"{shown}.containerd.runtimes.runc", {"runtime_type": _SHIM}))
    if K0S_MERGED not in read and not any([PurePosixPath(file.path).match(pattern) for pattern in read]):
        line = f"imports = {_value([*imports, f'{posixpath.dirname(file.path)}/*.toml'])}"
        # With two such lines containerd does not start; what 'containerd config default' prints has an empty one.
        where = "ahead of its tables" if found is None else "in the place of its own"
        told.append(f"containerd reads it once {config} has this line {where}: {line}")
    return _drop_in(CONTAINERD.word, file, files, tables, told, f"version = {version}\n")


def _runtime(host: HostRoot, files: Files, plugin: str, asked: WantedRuntime) -> tuple[list[Table], list[str]]:
    """The tables of a runtime like the default one, but by our program, and what is to be said; none if it is there."""
    runtimes, ours = f"plugins.{plugin}.containerd.runtimes", f'plugins."{plugin}".containerd.runtimes."{asked.name}"'
    if _is_there(host, files, f"{runtimes}.{asked.name}", "options.BinaryName"):
        return [], []
    merged = _merged(files)
    default = str(merged.get(f"plugins.{plugin}.containerd.default_runtime_name") or "runc")
    if merged.get(f"{runtimes}.{default}.runtime_type", _SHIM) != _SHIM:
        default = "runc"  # a virtual machine's shim starts no runtime
    options = _plain(merged, f"{runtimes}.{default}.options")
    told = _by_default(host, "pods have", str(options.get("BinaryName", "")))
    table = {"runtime_type": _SHIM, **_plain(merged, f"{runtimes}.{default}")}
    return [(ours, table), (f"{ours}.options", {**options, "BinaryName": asked.program})], told


def crio(host: HostRoot, file: EngineFile, asked: WantedRuntime) -> Change:
    """Our drop-in for CRI-O: the folder of our registration if it is not read, and a runtime for pods that name it."""
    files = _settings(host, CRIO, file)
    folders, _ = installed.hook_folders(CRIO, files)
    tables: list[Table] = []
    told: list[str] = []
    if HOOKS_FOLDER not in folders:
        tables.append(("crio.runtime", {"hooks_dir": [*folders, HOOKS_FOLDER]}))
    runtimes = "crio.runtime.runtimes"
    if asked.is_named and not _is_there(host, files, f"{runtimes}.{asked.name}", "runtime_path"):
        merged = _merged(files)
        # Where no file names a default, it is crun since 1.31, and runc before.
        names = merged.get("crio.runtime.default_runtime"), "crun", "runc"
        found = [_plain(merged, f"{runtimes}.{name}") for name in names]
        # A virtual machine's shim starts no runtime.
        default = next((it for it in found if it and it.get("runtime_type") not in ("vm", "pod")), {})
        has, real = "pods have", str(default.get("runtime_path", ""))
        if not default:
            has, real = "since CRI-O 1.31 pods have", installed.find_program(host, "crun")
        told += _by_default(host, has, real)
        # Like the default one: CRI-O's packages have conmon and the runtimes in a folder that is not in PATH, so that
        # it would not start with a runtime that does not say where they are.
        tables.append((f'{runtimes}."{asked.name}"', {**default, "runtime_path": asked.program}))
    if not tables:
        return Change(file.text, (f"CRI-O looks for hooks in {HOOKS_FOLDER}",))
    return _drop_in(CRIO.word, file, files, tables, told)


def podman(host: HostRoot, file: EngineFile, asked: WantedRuntime) -> Change:
    """Our drop-in for podman: the folder of our registration beside those that it reads, and our runtime.  Without a
    file that names any, root's podman reads the two default folders; on a user's that is not relied.
    """
    engine: dict[str, Any] = {}
    tables: list[Table] = [("engine", engine)]
    told = []
    base, kind = file.path.rpartition(".d/")[0], PODMAN
    if file.is_users:
        # Behind each folder of users comes the one in it that is this user's.
        own = ".rootless.conf.d/", f".rootless.conf.d/{os.geteuid()}/"
        both = [path.replace(".rootful.conf.d/", it) for path in PODMAN.files for it in own]
        kind = PODMAN._replace(files=(*both, base, f"{base}.d/*.conf"))
    files = _settings(host, kind, file)
    folders, by = installed.hook_folders(PODMAN, files)
    if by and HOOKS_FOLDER in folders:
        told.append(f"podman looks for hooks in {HOOKS_FOLDER}, by {by}")
    else:
        if not by:
            folders = () if file.is_users else (installed.VENDORS_FOLDER, installed.ADMINISTRATORS_FOLDER)
        # If one of the folders is missing, podman starts no hook at all, and only warns.
        there = [folder for folder in folders if host.stat(folder) is not None and folder != HOOKS_FOLDER]
        engine["hooks_dir"] = [*there, HOOKS_FOLDER]
    # In front of crun, which takes the GPU away at an update.
    runtime = str(_merged(files).get("engine.runtime", ""))
    if asked.default and runtime not in (asked.name, asked.program):
        engine["runtime"] = asked.name
        tables.append(("engine.runtimes", {asked.name: [asked.program]}))
        real = runtime if runtime.startswith("/") else installed.find_program(host, runtime or "crun")
        told += _by_default(host, "podman has", real)
    return _drop_in(PODMAN.word, file, files, tables, told) if engine else Change(file.text, tuple(told))


_KEPT = {
    "[engine.runtimes]": f"containers that were made with {installed.RUNTIME} cannot be started once podman knows no "
    "such runtime",
    "[crio.runtime.runtimes.": "delete the pods of this runtime first: CRI-O cannot end them once it knows no such "
    "runtime",
}


def without_drop_in(_root: HostRoot, file: EngineFile, _asked: WantedRuntime) -> Change:
    _check_own(file)
    return Change("", _stranded(file.text, ""))


def _stranded(before: str, after: str) -> tuple[str, ...]:
    """What is to be said of containers whose runtime's table goes: their engine keeps its name with each."""
    gone = [line for line in before.split("\n") if line.startswith("[") and line not in after.split("\n")]
    return tuple([said for table, said in _KEPT.items() if any([line.startswith(table) for line in gone])])


# Of each engine that has settings for us: its file with our part, and without it.
WAYS = {
    DOCKER: (daemonjson.with_runtime, daemonjson.without_runtime),
    CONTAINERD: (containerd, without_drop_in),
    CRIO: (crio, without_drop_in),
    PODMAN: (podman, without_drop_in),
}


def _check_own(file: EngineFile) -> None:
    if file.text and not file.text.startswith(_MARK.partition("{")[0]):
        raise ConfigError(f"{file.path} was not written by 'oci-gpu-hook configure', and stays", "move it away first")


def _settings(host: HostRoot, kind: EngineKind, own: EngineFile) -> Files:
    """What an engine's files say beside our own; ConfigError if one cannot be read, or our own is somebody else's."""
    _check_own(own)
    found = []
    for path, values in installed.contents(host, kind):
        if isinstance(values, Exception):
            hint = "install python3-tomli" if isinstance(values, installed.NoParser) else FIX
            raise ConfigError(f"cannot read {path}: {values}", hint)
        if path != own.path:
            found.append((path, values))
    return found


def _by_default(host: HostRoot, has: str, real: str) -> list[str]:
    """What is to be said of the runtime that containers have without ours, which ours is to start."""
    if not real or installed.is_ours(host, real):
        return []
    if installed.is_nvidias(host, real):
        return [f"{has} {real} by default, NVIDIA's: ours does its work, and starts runc or crun"]
    # Containers that run then could not be ended: another runtime does not know them.
    when = "while no container of ours runs"
    return [f"{has} {real} by default: so that ours starts it, set in {SETTINGS}, {when}: runtime = {real}"]


def _drop_in(word: str, own: EngineFile, files: Files, tables: list[Table], told: list[str], head: str = "") -> Change:
    """Our file, and a sentence for each key of ours that a file of the same folder has, which is read after our own."""
    text = f"{_MARK.format(word)}{head}{_toml(tables)}"
    keys = [f"{header}.{key}".replace('"', "") for header, row in tables for key in row]
    folder = f"{own.path.rpartition('/')[0]}/"
    behind = [(path, values) for path, values in files if path.startswith(folder) and path > own.path]
    twice = [(path, key) for path, values in behind for key in keys if key in values]
    later = [f"{path} has {key} too, and is read after {own.path}: rename one of them" for path, key in twice]
    return Change(text, (*told, *later, *_stranded(own.text, text)))


def _merged(files: Files) -> dict[str, Any]:
    """Of a key that several files have the last one counts."""
    return {key: value for _, values in files for key, value in values.items()}


def _is_there(host: HostRoot, files: Files, table: str, key: str) -> bool:
    """Whether one of the files has our runtime by this name; ConfigError for another one."""
    there = [item for item in files if any([name.startswith(f"{table}.") for name in item[1]])]
    for path, values in there:
        if not installed.is_ours(host, str(values.get(f"{table}.{key}", ""))):
            raise others(table, path)
    return bool(there)


def _plain(values: dict[str, Any], table: str) -> dict[str, Any]:
    """A table's texts, numbers, booleans, and lists of those."""
    found = {key[len(table) + 1 :]: value for key, value in values.items() if key.startswith(f"{table}.")}
    lists = {key: value if isinstance(value, list) else [value] for key, value in found.items() if _BARE.fullmatch(key)}
    return {key: found[key] for key, items in lists.items() if all([isinstance(item, (str, int)) for item in items])}


def _toml(tables: list[Table]) -> str:
    rows = [[f"[{header}]", *[f"  {key} = {_value(value)}" for key, value in row.items()]] for header, row in tables]
    return "".join([f"{line}\n" for lines in rows for line in lines])


def _value(value: object) -> str:
    # TOML writes these as JSON does, but for surrogates and DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
