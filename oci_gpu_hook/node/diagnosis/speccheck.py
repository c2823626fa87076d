# SPDX-License-Identifier: Apache-2.0
"""Findings about the host's CDI specs: each must say what the host has now.  Pure.

An engine makes the nodes that stand in a spec: a name that is stale gives another device than it says, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from posixpath import basename, dirname

from oci_gpu_hook.node.diagnosis import Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import REFRESH, Remedy, command, in_words, roots_alone, then
from oci_gpu_hook.node.engines.cdispecs import GPU, MANAGEMENT, SpecFile, words_of
from oci_gpu_hook.node.engines.installed import Engine

# What ends the fault of a spec of ours, see `compared`.
AGAIN, BY_OURS, REMOVE = "again", "again, by the hook that is installed", "remove"
# What oci-gpu-hook-cdi.service writes.
SERVICES = "oci-gpu-hook.yaml"
_AT_BOOT = "nvidia-cdi-refresh.service, where enabled, writes it again at boot"


def compared(
    specs: tuple[SpecFile, ...], version: str, out_of_date: Callable[[SpecFile], tuple[str, str]]
) -> Iterator[Finding]:
    """Each spec of ours as the host is now, of one kind one in a folder; and others' of GPUs; version: the driver's,
    "" for none; out_of_date: why a spec of ours is, "" if it is not, and what ends that, a word of these or a sentence.
    """
    for spec in [spec for spec in specs if version or spec.is_ours or spec.kind not in (GPU, MANAGEMENT)]:
        ours = [it for it in specs if (dirname(it.path), it.kind, it.is_ours) == (dirname(spec.path), spec.kind, True)]
        # The one that the service writes again is to stay, else the first.
        kept = min(ours or [spec], key=lambda it: not it.path.endswith(f"/{SERVICES}"))
        is_rewritten = spec.path.endswith("/run/cdi/nvidia.yaml") and not spec.is_ours
        remove = command("rm", spec.path, note=_AT_BOOT if is_rewritten else "")
        if spec != kept:
            seen = f"{spec.path} and {kept.path} give the same devices, and engines take neither"
            yield failed("CDI", seen, remove)
        elif spec.is_ours:
            why, fix = out_of_date(spec)
            remedy = remove if fix == REMOVE else in_words(fix)
            if fix in (AGAIN, BY_OURS):
                # The names in a spec are those of the saved inventory.
                remedy = then(REFRESH, _again(spec, spec.path, with_hook=fix == AGAIN))
            seen = f"{spec.path} says what the host has"
            yield failed("CDI", f"{spec.path}: {why}", remedy) if why else passed("CDI", seen)
        elif spec.kind == GPU:
            yield _of_others(spec, version, remove)


def _of_others(spec: SpecFile, version: str, remove: Remedy) -> Finding:
    if spec.driver != version and (spec.driver or not spec.fault):
        seen = f"{spec.path} is for driver {spec.driver or 'unknown'}, the host has {version}"
        return failed("CDI", seen, remove)
    why = f"cannot be read here: {spec.fault}" if spec.fault else "was made by another program, without the hook in it"
    return warned("CDI", f"{spec.path} {why}", remove)


def unread(specs: tuple[SpecFile, ...]) -> Iterator[Finding]:
    """Specs that are not read, in folders of root's: what an engine takes them for is not known."""
    for spec in [spec for spec in specs if spec.fault and spec.kind != GPU]:
        seen, remedy = f"{spec.path} cannot be read: {spec.fault}", command("vi", spec.path)
        if spec.is_open:
            seen = f"{spec.path}: {spec.fault}, and who writes it chooses what containers get"
            # What others have written must not become root's.
            remedy = command("rm", spec.path)
        yield warned("CDI", seen, remedy)


def of_folders(opened: dict[str, str], readers: tuple[Engine, ...]) -> Iterator[Finding]:
    """Folders that are not root's alone, by their paths without links, each with why: no spec in them is read here."""
    for folder, why in opened.items():
        named = [reader.folders_file for reader in readers if folder in reader.folders and reader.folders_file]
        seen = f"{folder}: {why}, and who writes there chooses what containers get"
        yield warned("CDI", seen, command("vi", named[0]) if named else roots_alone(folder))


def unseen(
    specs: tuple[SpecFile, ...], readers: tuple[Engine, ...], real: Callable[[str], str], opened: Collection[str] = ()
) -> Iterator[Finding]:
    """The engines that do not look where a spec of ours lies, and have no other of its kind; real: a path without
    links; opened: the folders that are not root's alone.
    """
    ours = [(spec, real(dirname(spec.path))) for spec in specs if spec.is_ours]
    for reader in readers:
        seen_kinds = {spec.kind for spec, folder in ours if folder in reader.folders}
        trusted = [folder for folder in reader.folders if folder not in opened]
        for spec in [spec for spec, _ in ours if spec.kind not in seen_kinds]:
            whose = f"{reader.folders_file} names " if reader.folders_file else "by default it looks in "
            where = f"{whose}{', '.join(reader.folders) or 'no folder'}"
            # The last one is that which a boot empties and a service fills.
            again = [_again(spec, f"{folder}/{basename(spec.path)}") for folder in trusted[-1:]]
            remedy = again[0] if again else command("vi", reader.folders_file or spec.path)
            yield warned("CDI", f"{reader.name} does not read {spec.path}: {where}", remedy)


def _again(spec: SpecFile, path: str, *, with_hook: bool = True) -> Remedy:
    words = words_of(spec.document, with_hook=with_hook)
    return command("oci-gpu-hook", "cdi", "generate", *words, "--output", path)
