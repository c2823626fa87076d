# SPDX-License-Identifier: Apache-2.0
"""A kubelet's few calls to a container runtime's CRI socket: a pod with the host's network, and one container in it.

    python3 tests/docker/cri.py SOCKET IMAGE [NAME=VALUE | CDI-DEVICE]... -- LOOK

The container has these variables and devices; LOOK is a shell script, whose output is printed when the pod is gone
again.  No CRI client is packaged in Debian 12: gRPC's frames are a few bytes each, and curl speaks HTTP/2.  What the
runtime says against it goes to stderr, with exit status 1.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.parse

SERVICE = "http://localhost/runtime.v1.RuntimeService"
# Of NamespaceOption: the node's own.
NODE = 2


def varint(value: int) -> bytes:
    text = b""
    while value > 0x7F:
        text += bytes([value & 0x7F | 0x80])
        value >>= 7
    return text + bytes([value])


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
    found = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key, value = number(), number()
        if key & 7 == 2:
            found[key >> 3] = data[at : at + value]
            at += value
    return found


def call(socket: str, method: str, request: bytes) -> dict[int, bytes]:
    """The response of one call."""
    line = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--unix-socket", socket]
    line += ["--header", "content-type: application/grpc", "--header", "te: trailers"]
    with tempfile.NamedTemporaryFile(dir="/run") as headers:
        line += ["--dump-header", headers.name, "--data-binary", "@-", f"{SERVICE}/{method}"]
        framed = b"\0" + len(request).to_bytes(4, "big") + request
        answer = subprocess.run(line, input=framed, capture_output=True, check=True).stdout
        told = dict(item.partition(": ")[::2] for item in headers.read().decode().split("\r\n"))
    if told["grpc-status"] != "0":
        sys.exit(f"{method}: {urllib.parse.unquote(told['grpc-message'])}")
    return texts(answer[5:])


def run(socket: str, image: str, given: list[str], look: str) -> str:
    """What the script prints in a container that has these variables and CDI devices."""
    # The second field of either one's Linux settings is its security context.
    network = message((1, NODE))
    linux = message((2, message((1, network))))
    pod = message((1, message((1, "pod"), (2, "uid"), (3, "default"))), (8, linux))
    pairs = [word.partition("=") for word in given if "/" not in word]
    container = message(
        (1, message((1, "main"))),
        (2, message((1, image))),
        *[(3, word) for word in ("/bin/sleep", "100000")],
        *[(6, message((1, name), (2, value))) for name, _, value in pairs],
        (15, message((2, message((3, network))))),
        *[(17, message((1, word))) for word in given if "/" in word],
    )
    sandbox = call(socket, "RunPodSandbox", message((1, pod)))[1]
    try:
        made = call(socket, "CreateContainer", message((1, sandbox), (2, container), (3, pod)))[1]
        call(socket, "StartContainer", message((1, made)))
        words = [(2, word) for word in ("/bin/sh", "-c", look)]
        return call(socket, "ExecSync", message((1, made), *words)).get(1, b"").decode()
    finally:
        call(socket, "StopPodSandbox", message((1, sandbox)))
        call(socket, "RemovePodSandbox", message((1, sandbox)))


if __name__ == "__main__":
    socket, image, *given = sys.argv[1 : sys.argv.index("--")]
    print(run(socket, image, given, sys.argv[-1]), end="")
