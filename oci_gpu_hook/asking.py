# SPDX-License-Identifier: Apache-2.0
"""What a container asks for: its inputs, the settings that hold for it, its request, and what is left out.

The hook, `oci-gpu-runtime`, ``plan`` and ``doctor --container`` ask here and nowhere else, so that all find the same
request.  Imports wait until they are needed, as in `hook`.  Must not decide what the container gets, and must not look
at the container itself.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import settings, sources
from oci_gpu_hook.request.state import Who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.vendorrequest import Known


class SpecStart(NamedTuple):
    """A CDI spec of ours that has started the hook, by the words that it gave: the engine has made the nodes.

    capabilities: those that a spec of GPUs is for; vendor: the flag of another vendor's spec; None for the other kind.
    """

    capabilities: tuple[str, ...] | None
    vendor: str | None


def spec_of(words: tuple[str, ...]) -> SpecStart | None:
    """The spec that has given a hook these words; None if none of ours has."""
    options = dict(zip(words, words[1:]))
    if "--cdi" in options:
        return SpecStart(tuple(options["--cdi"].split(",")), None)
    return SpecStart(None, options["--cdi-vendor"]) if "--cdi-vendor" in options else None


class Question:
    """One container's question, asked step by step: each step costs more than the one before.

    config: the file of settings, None for the usual ones; remember: whether vendors' files read anew are saved.
    """

    def __init__(
        self,
        bundle: Bundle,
        id: str,
        annotations: dict[str, str],
        config: str | None,
        host_root: str,
        *,
        remember: bool,
    ) -> None:
        self.bundle = bundle
        self.inputs = sources.inputs_of(bundle, annotations)
        self._id = id
        self._config = config
        self._host_root = host_root
        self._remember = remember
        self._known: tuple[Known, ...] | None = None

    def may_ask(self) -> bool:
        """Whether anything asks, whatever the administrator accepts; swarm resources apart, which only he names."""
        if sources.may_ask(self.inputs):
            return True
        if not sources.may_name_vendor(self.inputs):
            return False
        from oci_gpu_hook.request import vendorrequest

        return vendorrequest.asks(self.inputs, self._vendors())

    def settings(self) -> Settings:
        """The settings that hold for this container; ConfigError and RequestError as `settings.read_settings`."""
        who = Who(self.inputs.annotations, self._id, self.bundle.path)
        found = settings.read_settings(self._config, who)
        if "image" not in found.unmatched:
            return found
        from oci_gpu_hook.host import podman

        return podman.settings_of(self._config, who, self._host_root)

    def request(self, allowed: Settings, spec: SpecStart | None = None) -> tuple[Request | None, tuple[str, ...]]:
        """The request, and a sentence for each thing that is left out; HookError if it cannot be served.

        spec: what has started the hook: then the nodes that the engine has made are the request.
        """
        if spec is not None and spec.vendor is not None:
            from oci_gpu_hook.request import bycdi

            return bycdi.of_vendor(spec.vendor, self._vendors(), self.bundle.device_paths()), ()
        if spec is not None:
            from oci_gpu_hook.request import bycdi

            nodes = self.bundle.device_paths()
            return bycdi.of_nodes(self.inputs, allowed, nodes, spec.capabilities or ())
        from oci_gpu_hook.request import parse

        inputs = self.inputs
        if allowed.swarm_resources or not sources.accepts_environment(inputs, allowed):
            from oci_gpu_hook.host import docker

            inputs = docker.with_record(inputs, self.bundle, allowed, self._host_root)
        known = self._vendors() if sources.may_name_vendor(inputs, allowed) else ()
        return parse.parse(inputs, allowed, known)

    def _vendors(self) -> tuple[Known, ...]:
        """The vendors' files of this host, as far as they concern the container."""
        if self._known is None:
            from oci_gpu_hook.host.root import HostRoot
            from oci_gpu_hook.vendors import current

            root = HostRoot(self._host_root)
            self._known = current.for_container(root, self.inputs, remember=self._remember)
            root.close()
        return self._known
