# SPDX-License-Identifier: Apache-2.0
"""Engines judged: whether each sees our hook, once, and nobody else's that would do the job twice.  Pure.

oci-hooks(5): a file masks those of its name in folders of lower precedence, and one that an engine cannot read stops
every container of that engine.
"""

from __future__ import annotations

from oci_gpu_hook.diagnosis import FAIL, PASS, WARN, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.engines import Engine, Shim
    from oci_gpu_hook.host.registrations import Installation, Registration

_SERVED = {"prestart", "createRuntime"}
_REINSTALL = {
    "dnf": "dnf reinstall oci-gpu-hook",
    "apt": "make install",
}
# A drop-in that names one more folder, and what makes the engine read it.
_DROP_IN = {
    "podman": ("engine", "/etc/containers/containers.conf.d/99-oci-gpu-hook.conf", ""),
    "CRI-O": (
        "crio.runtime",
        "/etc/crio/crio.conf.d/99-oci-gpu-hook.conf",
        " && systemctl restart crio",
    ),
}
_DEFAULT_KEYS = {
    "podman": "runtime",
    "CRI-O": "default_runtime",
    "containerd": "default_runtime_name",
}


def seen_by(
    engine: Engine, everywhere: tuple[Registration, ...], names_of: str, tool: str
) -> list[Finding]:
    """Our hook as one engine sees it; `everywhere`: all registrations of all folders, `names_of`: our file's name."""
    check = f"hook in {engine.name}"
    read = [item for folder in engine.folders for item in everywhere if _folder(item) == folder]
    effective = {item.file: item for item in read}
    broken = [item for item in effective.values() if item.fault]
    if broken:
        item = broken[0]
        seen = f"{item.path} stops every container: {item.fault}"
        masks = [other for other in read if other.file == item.file and other != item]
        last = f"rm {item.path}" if masks or item.file != names_of else _REINSTALL[tool]
        return [Finding(check, FAIL, seen, last)]
    ours = [item for item in effective.values() if item.kind == "ours"]
    if not ours:
        return [_unseen(check, engine, read, effective, everywhere, tool)]
    if len(ours) > 1:
        extra = next((item for item in ours if item.file != names_of), ours[0])
        paths = " and ".join([item.path for item in ours])
        return [
            Finding(check, FAIL, f"registered twice, by {paths}: it runs twice", f"rm {extra.path}")
        ]
    return [_fit(check, ours[0], tool)]


def rivals(
    engines: tuple[Engine, ...], everywhere: tuple[Registration, ...], shims: tuple[Shim, ...]
) -> list[Finding]:
    """Other programs that would give a container its GPUs as well."""
    check = "other hooks"
    read = {folder for engine in engines for folder in engine.folders}
    findings = [
        Finding(
            check,
            FAIL,
            f"{item.path} starts NVIDIA's hook: GPUs are given twice",
            f"rm {item.path}",
        )
        for item in everywhere
        if item.kind == "NVIDIA's" and _folder(item) in read
    ]
    for shim in shims:
        if not shim.is_default and shim.engine not in _DROP_IN:
            continue  # Docker and containerd start no hook of hooks.d: nothing is done twice
        seen = f"{shim.file} has NVIDIA's runtime as {shim.runtime}"
        if not shim.is_default:
            seen += ": containers that name it are given their GPUs twice"
            findings.append(Finding(check, WARN, seen, _without_runtime(shim)))
        elif shim.engine in _DROP_IN:
            seen += ", the default: GPUs are given twice"
            findings.append(Finding(check, FAIL, seen, _without_default(shim)))
        else:
            seen += f", the default: {shim.engine} gives GPUs by it, and does not start our hook"
            findings.append(Finding(check, WARN, seen, _without_default(shim)))
    return findings or [Finding(check, PASS, "none that would give GPUs as well")]


def none_installed(tool: str) -> list[Finding]:
    """A host without an engine that reads hooks.d: runc and crun by themselves take hooks from a bundle only."""
    seen = "neither podman nor CRI-O is installed: a bundle must name the hook itself"
    return [Finding("engines", WARN, seen, f"{tool} install podman")]


def installation(found: Installation, tool: str) -> list[Finding]:
    """What an engine starts: whole, ours, and for nobody else to write."""
    check, reinstall = "installation", _REINSTALL[tool]
    if not found.is_there:
        return [Finding(check, FAIL, f"{found.door} is not there or cannot be run", reinstall)]
    if found.missing_shell:
        seen = f"{found.missing_shell} is not there, and {found.door} is written for it"
        return [Finding(check, FAIL, seen, f"{tool} install bash")]
    if not found.library:
        seen = f"{found.door} is another's file in our place"
        return [Finding(check, FAIL, seen, f"mv {found.door} {found.door}.other && {reinstall}")]
    if not found.is_whole:
        return [Finding(check, FAIL, f"{found.library} is not whole", reinstall)]
    if found.open_to_others:
        path = found.open_to_others[0]
        seen = f"others than root may write {path}, which runs as root"
        return [Finding(check, FAIL, seen, f"chown root: {path} && chmod go-w {path}")]
    if not found.is_linked:
        seen = f"{found.library} was not made for {found.python}: each start compiles it anew"
        return [Finding(check, WARN, seen, reinstall)]
    if found.leftovers:
        seen = f"{found.leftovers[0]} is left from an installation that did not end"
        return [Finding(check, WARN, seen, f"{reinstall} && rm -rf {' '.join(found.leftovers)}")]
    return [Finding(check, PASS, f"{found.door} leads to {found.library}")]


def _unseen(
    check: str,
    engine: Engine,
    read: list[Registration],
    effective: dict[str, Registration],
    everywhere: tuple[Registration, ...],
    tool: str,
) -> Finding:
    masked = [item for item in read if item.kind == "ours"]
    if masked:
        mask = effective[masked[-1].file]
        return Finding(check, FAIL, f"{mask.path} masks {masked[-1].path}", f"rm {mask.path}")
    elsewhere = [item for item in everywhere if item.kind == "ours"]
    if not elsewhere:
        return Finding(check, FAIL, "it is not registered", _REINSTALL[tool])
    folder = _folder(elsewhere[0])
    said_by = f" ({engine.said_by})" if engine.said_by else ""
    looks = ", ".join(engine.folders) or "no folder"
    seen = f"registered in {folder}, and {engine.name} looks in {looks}{said_by}"
    return Finding(check, FAIL, seen, _with_folder(engine, folder))


def _fit(check: str, item: Registration, tool: str) -> Finding:
    """A registration that is seen: at a stage that can be served, and for every container."""
    wrong = [stage for stage in item.stages if stage not in _SERVED]
    if wrong or not item.stages:
        seen = f"{item.path} registers it for {', '.join(wrong) or 'no stage'}"
        return Finding(check, FAIL, seen, _REINSTALL[tool])
    if len(item.stages) > 1:
        seen = f"{item.path} registers it for {' and '.join(item.stages)}: it runs twice"
        return Finding(check, FAIL, seen, _REINSTALL[tool])
    if item.words[1:2] not in [(stage,) for stage in _SERVED]:
        words = " ".join(item.words) or "nothing"
        seen = f"{item.path} starts it with {words}, which is no stage that it serves: it stops every container"
        return Finding(check, FAIL, seen, _REINSTALL[tool])
    if item.timeout is not None and item.timeout <= 0:
        seen = f"{item.path} gives it {item.timeout} seconds: it stops every container"
        return Finding(check, FAIL, seen, _REINSTALL[tool])
    if not item.always:
        seen = f"{item.path} registers it for some containers only"
        return Finding(check, WARN, seen, _REINSTALL[tool])
    return Finding(check, PASS, f"registered by {item.path}")


def _folder(item: Registration) -> str:
    return item.path.rpartition("/")[0]


def _with_folder(engine: Engine, folder: str) -> str:
    table, file, restart = _DROP_IN[engine.name]
    folders = ", ".join([f'"{path}"' for path in (*engine.folders, folder)])
    return f"printf '[{table}]\\nhooks_dir = [{folders}]\\n' >{file}{restart}"


def _without_default(shim: Shim) -> str:
    if shim.engine == "Docker":
        return "nvidia-ctk runtime configure --runtime=docker --nvidia-set-as-default=false"
    restart = _DROP_IN.get(shim.engine, ("", "", " && systemctl restart containerd"))[2]
    return f"sed -i '/^ *{_DEFAULT_KEYS[shim.engine]} *=/d' {shim.file}{restart}"


def _without_runtime(shim: Shim) -> str:
    if shim.engine == "podman":
        return f"sed -i '/nvidia-container-runtime/d' {shim.file}"
    return f"rm {shim.file}{_DROP_IN[shim.engine][2]}"
