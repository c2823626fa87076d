# SPDX-License-Identifier: Apache-2.0
"""In a process of its own: the sum of two vectors on one GPU or MIG device, through libcuda, compared with the CPU's.

CUDA has one device here, which CUDA_VISIBLE_DEVICES names.  Each call is named on a line before it is made: it may hang
or crash.  The last line is the answer, as JSON.  Nothing is freed, as the process ends.  Must not print anything else.
"""

from __future__ import annotations

import json
from array import array
from typing import Any
from uuid import UUID

from oci_gpu_hook.kernel import syscalls

# One thread for each element.
_BLOCKS, _THREADS = 200, 250
ELEMENTS = _BLOCKS * _THREADS
KERNEL = "vector_add"

_LIBRARY = "libcuda.so.1"
_LONGEST_TEXT = 256
_FLOAT_BYTES = 4

# PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/.  The driver compiles it for the GPU: version and
# target are of the oldest that any driver served here has.  Without a state space addresses are generic, as CUDA's are.
PTX = f"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry {KERNEL}(
    .param .u64 first,
    .param .u64 second,
    .param .u64 sum
)
{{
    .reg .b32 %index, %block, %threads, %thread;
    .reg .b64 %first, %second, %sum;
    .reg .f32 %x, %y, %z;

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;

    ld.param.u64 %first, [first];
    ld.param.u64 %second, [second];
    ld.param.u64 %sum, [sum];
    mad.wide.u32 %first, %index, {_FLOAT_BYTES}, %first;
    mad.wide.u32 %second, %index, {_FLOAT_BYTES}, %second;
    mad.wide.u32 %sum, %index, {_FLOAT_BYTES}, %sum;

    ld.f32 %x, [%first];
    ld.f32 %y, [%second];
    add.f32 %z, %x, %y;
    st.f32 [%sum], %z;
    ret;
}}
"""


def vectors() -> tuple[list[float], list[float]]:
    """What is added: a float of 32 bits holds each element and each sum exactly."""
    numbers = range(ELEMENTS)
    return [float(number) for number in numbers], [number / 2 + 0.25 for number in numbers]


def compare(found: list[float]) -> list[str]:
    """How many sums differ from the CPU's, and the first one's index, the CPU's and this one; [] for none."""
    wrong = [(index, a + b, found[index]) for index, (a, b) in enumerate(zip(*vectors())) if found[index] != a + b]
    # JSON has no infinity and no NaN, which a wrong result may be.
    return [str(value) for value in (len(wrong), *wrong[0])] if wrong else []


def answer() -> None:
    try:
        document = _added()
    except (OSError, AttributeError) as err:
        document = {"missing": str(err)}
    print(json.dumps(document))


def _call(name: str, *words: int) -> None:
    """If it fails, that is the answer, and the end."""
    function = syscalls.function_of(_LIBRARY, name)
    print(name, flush=True)
    code = function(*words)
    if code:
        named, text = _said("cuGetErrorName", code), _said("cuGetErrorString", code)
        print(json.dumps({"call": name, "code": code, "name": named, "text": text}))
        raise SystemExit


def _made(name: str, *words: int) -> int:
    """What the call writes to where its first argument points: a number, a pointer or an opaque value."""
    place = array("Q", [0])
    _call(name, _address(place), *words)
    return place[0]


def _said(function: str, code: int) -> str:
    text, copy = array("Q", [0]), array("B", bytes(_LONGEST_TEXT))
    if syscalls.function_of(_LIBRARY, function)(code, _address(text)) or not text[0]:
        return f"error {code}"
    # One byte less: the last one stays 0.
    syscalls.function_of("libc.so.6", "strncpy")(_address(copy), text[0], _LONGEST_TEXT - 1)
    return _c_string(copy)


def _address(memory: array[Any]) -> int:
    """Where it lies, for as long as the caller keeps it."""
    return memory.buffer_info()[0]


def _c_string(memory: array[int]) -> str:
    return memory.tobytes().partition(b"\0")[0].decode("ascii", "replace")


def _added() -> dict[str, Any]:
    _call("cuInit", 0)
    device = _made("cuDeviceGet", 0)
    name = array("B", bytes(_LONGEST_TEXT))
    _call("cuDeviceGetName", _address(name), _LONGEST_TEXT, device)
    _call("cuCtxSetCurrent", _made("cuDevicePrimaryCtxRetain", device))
    uuid = array("B", bytes(16))
    _call("cuDeviceGetUuid_v2", _address(uuid), device)
    return {"device": _c_string(name), "uuid": str(UUID(bytes=uuid.tobytes())), "differs": compare(_sums())}


def _sums() -> list[float]:
    source, entry = array("B", PTX.encode() + b"\0"), array("B", KERNEL.encode() + b"\0")
    kernel = _made("cuModuleGetFunction", _made("cuModuleLoadData", _address(source)), _address(entry))
    # The GPU's memory may hold the sums of an earlier run.
    found = array("f", [float("nan")] * ELEMENTS)
    memory, size = [], ELEMENTS * _FLOAT_BYTES
    for values in (*[array("f", it) for it in vectors()], found):
        memory.append(_made("cuMemAlloc_v2", size))
        _call("cuMemcpyHtoD_v2", memory[-1], _address(values), size)
    # The parameters are passed by the addresses of their values.
    given = array("Q", memory)
    pointers = array("Q", [_address(given) + given.itemsize * index for index in range(len(given))])
    shared_memory, stream, extra = 0, 0, 0
    grid, block = (_BLOCKS, 1, 1), (_THREADS, 1, 1)
    _call("cuLaunchKernel", kernel, *grid, *block, shared_memory, stream, _address(pointers), extra)
    _call("cuCtxSynchronize")
    _call("cuMemcpyDtoH_v2", _address(found), memory[-1], size)
    return found.tolist()
