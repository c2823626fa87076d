# SPDX-License-Identifier: Apache-2.0
"""The resources that an engine sets for a container that runs (``update``), without the devices that it knows of.

containerd writes the device rules of config.json into each update, podman all but a CDI spec's, the last (rw in ours).
crun alone puts them in force, which denies the hook's and those: they are left out; others are what somebody wants now.
hooks.d/oci-gpu-runtime starts this with the words CONFIG RESOURCES LOG: crun's copy of config.json, the file with the
resources, ``-`` for stdin, and the runtime's log, "" for none.  The resources go to stdout, not changed otherwise.
"""

from __future__ import annotations

import posix
import sys

from oci_gpu_hook.errors import DONE, BundleError
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.kernel.descriptors import write
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.state import object_of, open_file, read_bytes, read_object
from oci_gpu_hook.runtime import create

_STDIN, _STDOUT = 0, 1


def main() -> None:
    config, resources, log = sys.argv[1:]
    code, data = DONE, b""
    try:
        # Not without waiting: it may be a pipe.
        fd, name = (_STDIN, "the update on stdin") if resources == "-" else (open_file(resources, 0), resources)
        data = read_bytes(fd, name)
        data = without_devices(data, config)
    except Exception as err:
        code = create.failure(err, config, log)
    if code == DONE:
        write(_STDOUT, data)
    posix._exit(code)


def without_devices(data: bytes, config: str) -> bytes:
    """The resources without their device rules, if these are config.json's; what is none is the real runtime's."""
    try:
        wanted = Bundle("", {"linux": {"resources": object_of(data, "the update")}}).device_rules()
    except BundleError:
        return data
    rules = Bundle(config, read_object(config, open_file(config))).device_rules() if wanted else ()
    others = {(it.allow, it.access) for it in rules[len(wanted) :]} - {(True, "rw")}
    if not wanted or wanted != rules[: len(wanted)] or others:
        return data
    text = data.decode()
    kept = [text[at:end] for name, at, _, end in jsontext.members(text, text.index("{")) if name != "devices"]
    return f"{{{','.join(kept)}}}".encode()
