# SPDX-License-Identifier: Apache-2.0
"""In a process of its own: the sum of two vectors on one GPU or MIG device, through libcuda, compared with the CPU's.

CUDA has one device here, which CUDA_VISIBLE_DEVICES names.  Each call is named on a line before it is made, so that
whoever waits knows which one hangs or crashes; the last line is the answer, as JSON.  After an error nothing is freed:
a GPU that is lost may never answer again, and what the process had goes with it.  Must not print anything else.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any, NamedTuple

ELEMENTS = 50_000
KERNEL = "vector_add"

_LIBRARY = "libcuda.so.1"
_THREADS = 256
_FLOAT_BYTES = 4
_UUID_BYTES = 16

# PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/.  The driver compiles it for the GPU: version and
# target are of the oldest that any driver served here has.
PTX = f"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry {KERNEL}(
    .param .u64 first,
    .param .u64 second,
    .param .u64 sum,
    .param .u32 elements
)
{{
    .reg .pred %outside;
    .reg .b32 %index, %block, %threads, %thread, %elements;
    .reg .b64 %offset, %first, %second, %sum;
    .reg .f32 %x, %y, %z;

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    ld.param.u32 %elements, [elements];
    setp.ge.u32 %outside, %index, %elements;
    @%outside bra end;

    ld.param.u64 %first, [first];
    ld.param.u64 %second, [second];
    ld.param.u64 %sum, [sum];
    cvta.to.global.u64 %first, %first;
    cvta.to.global.u64 %second, %second;
    cvta.to.global.u64 %sum, %sum;
    mul.wide.u32 %offset, %index, {_FLOAT_BYTES};
    add.u64 %first, %first, %offset;
    add.u64 %second, %second, %offset;
    add.u64 %sum, %sum, %offset;

    ld.global.f32 %x, [%first];
    ld.global.f32 %y, [%second];
    add.f32 %z, %x, %y;
    st.global.f32 [%sum], %z;
end:
    ret;
}}
"""


class CudaError(Exception):
    """A call that has failed."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call, self.code, self.name, self.text = call, code, name, text


class Difference(NamedTuple):
    """What differs: how many elements, and the first of them."""

    differing: int
    first: int
    expected: float
    got: float


def vectors() -> tuple[list[float], list[float]]:
    """What is added: a float of 32 bits holds each element and each sum exactly."""
    numbers = range(ELEMENTS)
    return [float(number) for number in numbers], [number / 2 + 0.25 for number in numbers]


def compare(found: list[float]) -> Difference | None:
    """What differs from the sums that the CPU makes."""
    first, second = vectors()
    wrong = [index for index in range(ELEMENTS) if found[index] != first[index] + second[index]]
    if not wrong:
        return None
    index = wrong[0]
    return Difference(len(wrong), index, first[index] + second[index], found[index])


def answer() -> None:
    """Add on the device, and print what came of it."""
    try:
        document = _added(_Cuda())
    except CudaError as err:
        document = {"call": err.call, "code": err.code, "name": err.name, "text": err.text}
    except OSError as err:
        document = {"missing": str(err)}
    except AttributeError as err:
        document = {"missing": f"{_LIBRARY} is not CUDA's: {err}"}
    print(json.dumps(document))


class _Cuda:
    """libcuda: a failed call raises CudaError."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(_LIBRARY)

    def __call__(self, name: str, *arguments: Any) -> None:
        function = getattr(self.library, name)
        print(name, flush=True)
        code = function(*arguments)
        if code:
            raise CudaError(
                name, code, self._said("cuGetErrorName", code), self._said("cuGetErrorString", code)
            )

    def _said(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        if getattr(self.library, function)(code, ctypes.byref(text)) or not text.value:
            return f"error {code}"
        return text.value.decode("ascii", "replace")


def _added(cuda: _Cuda) -> dict[str, Any]:
    cuda("cuInit", 0)
    device, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    cuda("cuDeviceGet", ctypes.byref(device), 0)
    cuda("cuDeviceGetName", name, len(name), device)
    context = ctypes.c_void_p()
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda("cuCtxSetCurrent", context)
    uuid, found = _uuid(cuda, device), _sums(cuda)
    cuda("cuDevicePrimaryCtxRelease_v2", device)
    difference = compare(found)
    return {
        "device": name.value.decode("ascii", "replace"),
        "uuid": uuid,
        # JSON has no infinity and no NaN, which a wrong result may be.
        "differs": [str(value) for value in difference] if difference else None,
    }


def _uuid(cuda: _Cuda, device: ctypes.c_int) -> str:
    """The device's UUID without what it begins with; drivers before CUDA 11.4 give that of a MIG device's GPU."""
    data = ctypes.create_string_buffer(_UUID_BYTES)
    is_new = hasattr(cuda.library, "cuDeviceGetUuid_v2")
    cuda("cuDeviceGetUuid_v2" if is_new else "cuDeviceGetUuid", data, device)
    digits = data.raw.hex()
    ends = (8, 12, 16, 20, 32)
    return "-".join([digits[begin:end] for begin, end in zip((0, *ends), ends)])


def _sums(cuda: _Cuda) -> list[float]:
    """What the device makes of `vectors`."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), PTX.encode())
    cuda("cuModuleGetFunction", ctypes.byref(kernel), module, KERNEL.encode())
    array = ctypes.c_float * ELEMENTS
    found = array(*[float("nan")] * ELEMENTS)
    # The GPU's memory may hold the sums of an earlier run.
    memory = [_copied(cuda, values) for values in (*[array(*it) for it in vectors()], found)]
    _launch(cuda, kernel, memory)
    cuda("cuCtxSynchronize")
    cuda("cuMemcpyDtoH_v2", found, memory[-1], ctypes.c_size_t(ctypes.sizeof(found)))
    for pointer in memory:
        cuda("cuMemFree_v2", pointer)
    cuda("cuModuleUnload", module)
    return list(found)


def _copied(cuda: _Cuda, values: ctypes.Array[ctypes.c_float]) -> ctypes.c_uint64:
    """Memory of the device with these values."""
    pointer, size = ctypes.c_uint64(), ctypes.c_size_t(ctypes.sizeof(values))
    cuda("cuMemAlloc_v2", ctypes.byref(pointer), size)
    cuda("cuMemcpyHtoD_v2", pointer, values, size)
    return pointer


def _launch(cuda: _Cuda, kernel: ctypes.c_void_p, memory: list[ctypes.c_uint64]) -> None:
    given = [*memory, ctypes.c_uint32(ELEMENTS)]
    pointers = (ctypes.c_void_p * len(given))(*[ctypes.addressof(value) for value in given])
    blocks = (ELEMENTS + _THREADS - 1) // _THREADS
    shared_memory, stream, extra = 0, None, None
    cuda(
        *("cuLaunchKernel", kernel, blocks, 1, 1, _THREADS, 1, 1),
        *(shared_memory, stream, pointers, extra),
    )
