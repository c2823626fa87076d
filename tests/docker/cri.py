# SPDX-License-Identifier: Apache-2.0
"""A kubelet's few calls to a container runtime's CRI socket: a pod with the host's network, and containers in it.

    python3 tests/docker/cri.py SOCKET IMAGE [NAME=VALUE | CDI-DEVICE | OPTION]... -- LOOK

The container has these variables and devices; LOOK is a shell script, whose output is printed when the pod is gone
again.  --user: it runs as user 1000; --read-only: on a read-only root; --update: its resources are set again, and after
a line "updated" it looks once more; --again: so does a second one like it, after a line "again".  No CRI client is
packaged in Debian 12: gRPC's frames are a few bytes each, and curl speaks HTTP/2.  What the runtime says against it
goes to stderr, and what it says of the container afterwards, with exit status 1.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import urllib.parse

SERVICE = "http://localhost/runtime.v1.RuntimeService"
# Of NamespaceOption: the node's own.
NODE = 2


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def message(*fields: tuple[int, str | bytes | int]) -> bytes:
    """A protobuf message of numbers, texts and messages, each with the number of its field."""
    text = b""
    for number, value in fields:
        if isinstance(value, int):
            text += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            text += varint(number << 3 | 2) + varint(len(data)) + data
    return text


def texts(data: bytes) -> dict[int, bytes]:
    """The fields of a message that are texts or messages, by number."""
    found, stream = {}, io.BytesIO(data)

    def number() -> int:
        byte = stream.read(1)[0]
        return byte if byte < 0x80 else (number() << 7) + (byte & 0x7F)

    while stream.tell() < len(data):
        key, value = number(), number()
        if key & 7 == 2:
            found[key >> 3] = stream.read(value)
    return found


class RefusedError(Exception):
    """What the runtime says against a call."""


class Pod:
    """A pod that runs, and the socket of its runtime."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        # The second field of either one's Linux settings is its security context.
        linux = message((2, message((1, message((1, NODE))))))
        metadata = message((1, "pod"), (2, "uid"), (3, "default"))
        self.config = message((1, metadata), (8, linux))
        self.id = self.call("RunPodSandbox", (1, self.config))[1]

    def create(self, name: str, image: str, given: list[str]) -> bytes:
        pairs = [word.partition("=") for word in given if word[0] != "-" and "/" not in word]
        uid = 1000 if "--user" in given else 0
        rights = message((3, message((1, NODE))), (5, message((1, uid))), (7, int("--read-only" in given)))
        container = message(
            (1, message((1, name))),
            (2, message((1, image))),
            *[(3, word) for word in ("/bin/sleep", "100000")],
            *[(6, message((1, name), (2, value))) for name, _, value in pairs],
            (15, message((2, rights))),
            *[(17, message((1, word))) for word in given if "/" in word],
        )
        return self.call("CreateContainer", (1, self.id), (2, container), (3, self.config))[1]

    def start(self, container: bytes) -> None:
        """Start it; RefusedError has also what the runtime says of it afterwards."""
        try:
            self.call("StartContainer", (1, container))
        except RefusedError as err:
            status = texts(self.call("ContainerStatus", (1, container))[1])
            reason, why = status[10].decode(), status[11].decode()
            raise RefusedError(f"{err}\ninspect: {reason}: {why}") from err

    def update(self, container: bytes) -> None:
        """Other shares of the processor."""
        self.call("UpdateContainerResources", (1, container), (2, message((3, 512))))

    def look(self, container: bytes, script: str) -> str:
        words = [(2, word) for word in ("/bin/sh", "-c", script)]
        return self.call("ExecSync", (1, container), *words).get(1, b"").decode()

    def call(self, method: str, *fields: tuple[int, str | bytes | int]) -> dict[int, bytes]:
        request = message(*fields)
        line = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--unix-socket", self.socket]
        line += ["--header", "content-type: application/grpc", "--header", "te: trailers"]
        with tempfile.NamedTemporaryFile(dir="/run") as headers:
            line += ["--dump-header", headers.name, "--data-binary", "@-", f"{SERVICE}/{method}"]
            framed = b"\0" + len(request).to_bytes(4, "big") + request
            answer = subprocess.run(line, input=framed, capture_output=True, check=True).stdout
            told = dict(item.partition(": ")[::2] for item in headers.read().decode().split("\r\n"))
        if told["grpc-status"] != "0":
            raise RefusedError(f"{method}: {urllib.parse.unquote(told['grpc-message'])}")
        return texts(answer[5:])

    def remove(self) -> None:
        """End it, with its containers."""
        self.call("StopPodSandbox", (1, self.id))
        self.call("RemovePodSandbox", (1, self.id))


def run(socket: str, image: str, given: list[str], look: str) -> str:
    """What the script prints in a pod's containers that have these variables, CDI devices and options."""
    pod = Pod(socket)
    try:
        first = pod.create("main", image, given)
        pod.start(first)
        seen = pod.look(first, look)
        if "--update" in given:
            pod.update(first)
            seen += f"updated\n{pod.look(first, look)}"
        if "--again" in given:
            second = pod.create("again", image, given)
            pod.start(second)
            seen += f"again\n{pod.look(second, look)}"
        return seen
    finally:
        pod.remove()


if __name__ == "__main__":
    socket, image, *given = sys.argv[1 : sys.argv.index("--")]
    try:
        print(run(socket, image, given, sys.argv[-1]), end="")
    except RefusedError as err:
        sys.exit(str(err))
