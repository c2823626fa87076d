# SPDX-License-Identifier: Apache-2.0
"""What a container asks for: its inputs, the settings that hold for it, its request, and what is left out."""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import settings, sources
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.request.state import State
from oci_gpu_hook.request.words import CAPABILITIES, MEMORY_LIMIT, MEMORY_REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.selectors import KnownVendor, Request

_OPTIONS = ("--config", "--host-root", "--cdi", "--cdi-vendor", "--cdi-means")
_WRITE_AGAIN = "write the CDI spec again with 'oci-gpu-hook cdi generate'"


class Spec(NamedTuple):
    """A CDI spec of ours that has started the hook: the engine has made the nodes.  capabilities: of a spec of GPUs;
    vendor: the flag of another vendor's, else ""; means: whose device each node was then, see `planning.meanings`.
    """

    capabilities: tuple[str, ...]
    vendor: str
    means: tuple[tuple[str, str], ...] = ()


class Options(NamedTuple):
    """The words after the stage: ``--config FILE``, ``--host-root DIR``, and those that our CDI specs give."""

    config: str | None = None
    host_root: str = "/"
    spec: Spec | None = None


def options(words: list[str] | tuple[str, ...]) -> Options:
    """UsageError for any other word or capability."""
    given, rest = dict[str, str](), iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            hint = _WRITE_AGAIN if option.startswith("--cdi") else ""
            raise UsageError(f"unknown option {word!r} after a hook stage", hint)
        given[option] = value if equals else next(rest, "")
        if not given[option]:
            raise UsageError(f"{option} needs a value")
    capabilities = tuple(given["--cdi"].split(",")) if "--cdi" in given else ()
    if unknown := [name for name in capabilities if name not in CAPABILITIES]:
        raise UsageError(f"--cdi names {unknown[0]!r}, which is not a capability", _WRITE_AGAIN)
    vendor, means = given.get("--cdi-vendor", ""), []
    for item in given["--cdi-means"].split(",") if "--cdi-means" in given else ():
        name, _, meaning = item.partition("=")
        if not name or not meaning:
            raise UsageError(f"--cdi-means has {item!r}, which is not a node and whose it is", _WRITE_AGAIN)
        means.append((f"/dev/{name}", meaning))
    spec = Spec(capabilities, vendor, tuple(means)) if capabilities or vendor else None
    return Options(given.get("--config"), given.get("--host-root", "/"), spec)


def is_served(bundle: Bundle) -> bool:
    """Whether this very program has been started for prestart, as dockerd registers it for ``--gpus``."""
    earlier = [path for path, words in bundle.hooks("prestart") if words[1:] == ("prestart",)]
    ours = [path for path, _ in bundle.hooks("createRuntime") if path.endswith("/oci-gpu-hook")]
    return not _inodes(earlier).isdisjoint(_inodes(ours))


def _inodes(paths: list[str]) -> set[tuple[int, int]]:
    found = set()
    for path in paths:
        try:
            status = posix.stat(path)
            found.add((status.st_dev, status.st_ino))
        except OSError:
            continue
    return found


class Question:
    """state: with the annotations of config.json too; inputs: what asks, if that is not in config.json."""

    def __init__(
        self, bundle: Bundle, state: State, options: Options, *, remember: bool = False, inputs: Inputs | None = None
    ) -> None:
        self.bundle, self.options, self._remember = bundle, options, remember
        self.state = state._replace(bundle=bundle.path, annotations={**state.annotations, **bundle.annotations()})
        self.inputs = inputs or sources.inputs_of(bundle, self.state.annotations)
        self._known: tuple[KnownVendor, ...] | None = None

    def may_ask(self) -> bool:
        if sources.may_ask(self.inputs):
            return True
        if not sources.may_name_vendor(self.inputs):
            return False
        from oci_gpu_hook.request import vendorrequest

        return vendorrequest.asks(self.inputs, self._vendors())

    def settings(self) -> Settings:
        return settings.read_settings(self.options.config, self.state, self.options.host_root, self._image)

    def _image(self) -> str:
        from oci_gpu_hook.host import podman
        from oci_gpu_hook.host.root import HostRoot

        with HostRoot(self.options.host_root) as host:
            return podman.image(host, self.state.bundle, self.state.id)

    def request(self, allowed: Settings, spec: Spec | None = None) -> tuple[Request | None, tuple[str, ...]]:
        """The request, and a sentence for each thing left out; spec: what has started the hook, by its nodes."""
        request, notes = self._of_devices(allowed, spec)
        if request is not None and not {MEMORY_LIMIT, MEMORY_REQUEST}.isdisjoint(self.inputs.environment):
            from oci_gpu_hook.request import memory

            limit, needed = memory.parse_memory(self.inputs.environment)
            request = request._replace(memory_limit=limit, memory_request=needed)
        return request, notes

    def _of_devices(self, allowed: Settings, spec: Spec | None) -> tuple[Request | None, tuple[str, ...]]:
        if spec is not None:
            from oci_gpu_hook.request import cdirequest

            nodes = tuple([path for path, *_ in self.bundle.made()])
            if spec.vendor:
                return cdirequest.of_vendor(spec.vendor, self._vendors(), nodes, allowed)
            return cdirequest.of_nodes(self.inputs, allowed, nodes, spec.capabilities)
        from oci_gpu_hook.request import parse

        inputs = self.inputs
        if allowed.swarm_resources or allowed.docker_count == "any" or not sources.accepts_environment(inputs, allowed):
            from oci_gpu_hook.host import docker

            inputs = docker.with_record(inputs, self.bundle, allowed, self.options.host_root)
        known = self._vendors() if sources.may_name_vendor(inputs, allowed) else ()
        return parse.parse_request(inputs, allowed, known)

    def _vendors(self) -> tuple[KnownVendor, ...]:
        if self._known is None:
            from oci_gpu_hook.host.root import HostRoot
            from oci_gpu_hook.vendors import folders

            with HostRoot(self.options.host_root, remember=self._remember) as host:
                self._known = folders.for_container(host, self.inputs)
        return self._known
