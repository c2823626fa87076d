# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of this host: ours in JSON, and others', also in YAML if PyYAML is installed.  Reads only."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

from oci_gpu_hook import asking
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.installed import ENTRY, START, Engine, NoParser
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.words import CAPABILITIES, CDI_FOLDERS, items

GPU, MANAGEMENT = "nvidia.com/gpu", "management.nvidia.com/gpu"
PROGRAM = "oci-gpu-hook"
# In the environment of containers that use a spec without a hook.
MARK = "OCI_GPU_HOOK_CDI"

_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.[0-9.]*\d)")
_NOTHING = "it is neither JSON nor YAML"
# PyYAML reads some 100 KiB a second; specs of NVIDIA's tools have up to 300 KiB.
_LARGEST_YAML = 1 << 20
_OF_GPUS = re.compile(r"kind\W+nvidia\.com/gpu\b")


class SpecFile(NamedTuple):
    """driver: the version that another program's was made for, "" if it does not say; document: {} if it is not read;
    fault: why; is_open: because others than root could have written it.
    """

    path: str
    kind: str
    is_ours: bool
    driver: str
    document: dict[str, Any]
    fault: str = ""
    is_open: bool = False


class SpecOrigin(NamedTuple):
    """How a spec of ours was made; each is "" if it does not say, and all are for any other document.  capabilities:
    that a spec of GPUs is for; vendor: the flag, "" for NVIDIA's; config: the administrator's file; means: of its
    nodes; hook: the path of its program; kind: of a spec that starts no hook.
    """

    capabilities: str
    vendor: str
    config: str
    means: str
    hook: str
    kind: str

    @property
    def is_ours(self) -> bool:
        return bool(self.capabilities or self.vendor or self.kind)

    @property
    def family(self) -> str:
        """What a spec without a hook is for: ``imex``, ``gds``, ...; "" for any other."""
        return self.kind.rpartition("/")[2].partition("-")[0]


def folders(host: HostRoot, readers: tuple[Engine, ...]) -> dict[str, str]:
    """The usual folders for specs, and these engines', by paths without links; of two paths of one folder the first."""
    found: dict[str, str] = {}
    for folder in (*CDI_FOLDERS, *[it for reader in readers for it in reader.folders]):
        found.setdefault(host.real(folder), folder)
    return found


def specs(host: HostRoot, readers: tuple[Engine, ...] = ()) -> tuple[SpecFile, ...]:
    """Every spec in those of `folders` that are root's; without PyYAML those in YAML that are for NVIDIA's GPUs."""
    trusted = [folder for folder in folders(host, readers).values() if not host.openness(folder)]
    paths = [f"{folder}/{name}" for folder in trusted for name in host.names(folder)]
    found = [_read(host, path) for path in paths if path.endswith((".yaml", ".json"))]
    return tuple([spec for spec in found if spec is not None])


def _read(host: HostRoot, path: str) -> SpecFile | None:
    why = host.openness(path)
    data = None if why else host.read(path)
    if data is None:
        return SpecFile(path, "", False, "", {}, why or "it cannot be read as a file of at most 8 MiB", bool(why))
    return _spec(path, data.decode("utf-8", "replace"))


def _spec(path: str, said: str) -> SpecFile | None:
    document, kind, fault = {}, "", ""
    try:
        document = parsed(said)
        kind = _word(document.get("kind"))
    except NoParser as err:
        if not _OF_GPUS.search(said):
            return None
        kind, fault = GPU, str(err)
    except ValueError as err:
        fault = str(err)
    library = _LIBRARY.search(said)
    return SpecFile(path, kind, origin_of(document).is_ours, library[1] if library else "", document, fault)


def parsed(said: str) -> dict[str, Any]:
    """The document in the text of a spec; ValueError if it is none, `NoParser` if that cannot be told."""
    with suppress(ValueError, RecursionError):
        return _object(json.loads(said))
    if len(said) > _LARGEST_YAML:
        raise ValueError(f"it is not JSON, and larger than {_LARGEST_YAML >> 20} MiB")
    try:
        import yaml
    except ImportError as err:
        raise NoParser("this Python has no PyYAML (python3-pyyaml, on Debian python3-yaml)") from err

    # Not libyaml's parser: a text that is nested too deep overflows its stack and kills the process.  Each scalar is a
    # string: no word is taken for a date or a number.
    class Loader(yaml.BaseLoader):  # type: ignore[misc]  # PyYAML has no types
        def compose_node(self, parent: Any, index: Any) -> Any:
            # A few hundred bytes of aliases make a document that no memory holds once it is shown or walked.
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it has YAML aliases")
            return super().compose_node(parent, index)

    try:
        return _object(yaml.load(said, Loader=Loader))
    except (yaml.YAMLError, RecursionError, OverflowError) as err:
        raise ValueError(_NOTHING) from err


def _object(document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError(_NOTHING)
    return document


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def edits(item: dict[str, Any]) -> dict[str, Any]:
    """The containerEdits of a spec or of a device in it; {} if there are none."""
    found = item.get("containerEdits")
    return found if isinstance(found, dict) else {}


def origin_of(document: dict[str, Any]) -> SpecOrigin:
    found = edits(document)
    hooks, variables = found.get("hooks"), found.get("env")
    # One in all, whatever the others are: `doctor` takes it by that.
    hook = hooks[0] if isinstance(hooks, list) and [*map(type, hooks)] == [dict] else {}
    words = hook.get("args")
    options: dict[str, str] = {}
    if isinstance(words, list) and words[:1] == [PROGRAM]:
        texts = [_word(word) for word in words]
        options = dict(zip(texts, texts[1:]))
    mark, _, kind = _word(variables[0] if isinstance(variables, list) and len(variables) == 1 else "").partition("=")
    names = ("--cdi", "--cdi-vendor", "--config", "--cdi-means")
    capabilities, vendor, config, means = [options.get(name, "") for name in names]
    path = _word(hook.get("path")) if options else ""
    return SpecOrigin(capabilities, vendor, config, means, path, kind if mark == MARK else "")


def words_of(document: dict[str, Any], *, with_hook: bool = True) -> tuple[str, ...]:
    """The options of `cdi generate` that made a spec of ours; with_hook: with its own program, if it has one."""
    words, made = [], origin_of(document)
    if made.vendor:
        words = ["--vendor", made.vendor]
    elif kind := made.family or ("management" if document.get("kind") == MANAGEMENT else ""):
        words = ["--kind", kind]
    capabilities = [it for it in items(made.capabilities) if it in CAPABILITIES]
    if capabilities and {*capabilities} != {*CAPABILITIES}:
        words += ["--capabilities", ",".join(capabilities)]
    words += ["--config", made.config] if made.config else []
    return (*words, *(["--hook", made.hook] if with_hook and made.hook not in ("", ENTRY, START) else []))


def in_bundle(bundle: Bundle) -> list[asking.Spec]:
    found = []
    for _, words in bundle.hooks("createRuntime"):
        with suppress(UsageError):  # another program's hook
            found.append(asking.options(words[2:]).spec)
    return [spec for spec in found if spec]
