# SPDX-License-Identifier: Apache-2.0
"""The container's state, on the hook's standard input (runtime-spec 1.0 to 1.2, runtime.md; engines before it write
``bundlePath``).
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import BundleError, quoted
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.record import NamedTuple

# An engine copies a pod's annotations into both documents, of which Kubernetes takes 256 KiB; and the kernel takes some
# MiB of environment.  A document of the largest size may have a value in every twenty bytes: each takes a hundred.
_LARGEST_STATE, _LARGEST_CONFIG, _BYTES_OF_VALUE = 2 << 20, 4 << 20, 20
_LONGEST_ID = 1024  # runtimes name a folder after it
# As in hooks.d/asking.bash.
_ASKING = (b"NVIDIA_", b"CUDA_VERSION", b"cdi.k8s.io", b"nvidia-container-devices", b"nvidia_driver_", b'"OCI_')


class ExcessError(BundleError):
    """The state or config.json has more than any engine writes.  read: the pieces of it that were read."""

    def __init__(self, message: str, read: list[bytes]) -> None:
        super().__init__(message)
        self._read = read

    def may_ask(self, variables: tuple[str, ...]) -> bool:
        """Whether what was read has a sign of a request for a GPU; variables: further ones that ask."""
        text = b"".join(self._read)
        return any([word in text for word in (*_ASKING, *[f'"{name}='.encode() for name in variables])])


class State(NamedTuple):
    """image: by an engine's own record, "" for none; caller: the name by which the hook was called for a container of
    which no engine tells a process, "" for any other; status: "stopped" of one that is restored.
    """

    id: str = ""
    pid: int = 0
    bundle: str = ""
    annotations: dict[str, str] = {}  # noqa: RUF012  read only
    image: str = ""
    caller: str = ""
    status: str = ""

    def is_restored(self) -> bool:
        return self.status == "stopped"


def read_state(fd: int, head: bytes = b"") -> State:
    """The state from `fd`, read to its end; `head` is what the entry script has read of it already."""
    what = "the state on stdin"
    document = object_of(read_bytes(fd, what, head, _LARGEST_STATE), what, _LARGEST_STATE)
    bundle, pid = document.get("bundle", document.get("bundlePath")), document.get("pid")
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise BundleError(f"{what} has no absolute path as 'bundle'")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise BundleError(f"{what} has no 'pid' above 0")
    container_id = document.get("id", "")
    if not isinstance(container_id, str) or len(container_id) > _LONGEST_ID:
        raise BundleError(f"the 'id' in {what} is not a string of {_LONGEST_ID} characters or less")
    annotations = document.get("annotations") or {}
    if not isinstance(annotations, dict) or not all([isinstance(value, str) for value in annotations.values()]):
        raise BundleError(f"'annotations' in {what} is not an object of strings")
    return State(container_id, pid, checked_path(bundle), annotations, status=str(document.get("status", "")))


def open_file(name: str, flags: int = posix.O_NONBLOCK) -> int:
    """A file, to be read; BundleError if it cannot be opened.  O_NONBLOCK: a FIFO must not hold the start up."""
    try:
        return posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC | flags)
    except OSError as err:
        raise BundleError(f"cannot open {name}: {err.strerror}") from err


def read_object(name: str, fd: int) -> dict[str, object]:
    with closing(fd):
        return object_of(read_bytes(fd, name), name)


def object_of(data: bytes, what: str, largest: int = _LARGEST_CONFIG) -> dict[str, object]:
    """The JSON object that `data` is; BundleError names it as `what`."""
    most = largest // _BYTES_OF_VALUE
    if jsontext.has_more_values(data, most):
        raise ExcessError(f"{what} has more than {most} values", [data])
    try:
        document = jsontext.loads(data)
    except ValueError as err:
        raise BundleError(f"{what} is not JSON: {str(err)[:200]}") from err
    if not isinstance(document, dict):
        raise BundleError(f"{what} is not a JSON object")
    return document


def read_bytes(fd: int, what: str, head: bytes = b"", largest: int = _LARGEST_CONFIG) -> bytes:
    """`head` and all that `fd` holds; BundleError if they are more than `largest` bytes."""
    pieces, size = [head], len(head)
    try:
        while piece := posix.read(fd, 1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > largest:
                raise ExcessError(f"{what} is larger than {largest >> 20} MiB", pieces)
    except OSError as err:
        raise BundleError(f"cannot read {what}: {err.strerror}") from err
    return b"".join(pieces)


def checked_path(text: str) -> str:
    try:
        if b"\0" not in text.encode():
            return text
    except UnicodeEncodeError:
        pass
    raise BundleError(f"{quoted(text)} cannot be a path")
