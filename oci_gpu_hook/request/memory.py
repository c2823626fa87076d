# SPDX-License-Identifier: Apache-2.0
"""How much memory of each device, of any vendor, a container asks for, by NVIDIA's variables, or may have.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.request.words import AUTHOR, MEMORY_LIMIT, MEMORY_REQUEST

MIB = 1 << 20
SHARE = -1  # in place of a number of bytes: what each of gpu-holders containers can have
_UNITS = {"M": MIB, "G": MIB << 10}
_MAX = (1 << 44) - 1  # of a number of bytes in 64 bits


def parse_memory(environment: dict[str, str]) -> tuple[int, int]:
    """The limit, and what is needed, in bytes of each device; 0 for what is not said.  RequestError for all but whole
    MiB, as NVIDIA's toolkit (1.20, ``apply-cuda-memory-limits``), for 0, and for more than the limit.
    """
    found: dict[str, int] = {}
    for variable in [it for it in (MEMORY_LIMIT, MEMORY_REQUEST) if it in environment]:
        found[variable] = decimal(environment[variable], _MAX) or 0
        if not found[variable]:
            why = f"{variable} is {quoted(environment[variable])}, which is not a number of MiB from 1 on"
            raise RequestError(why, AUTHOR)
    limit, needed = found.get(MEMORY_LIMIT, 0), found.get(MEMORY_REQUEST, 0)
    if limit and needed > limit:
        raise RequestError(f"{MEMORY_REQUEST} is {needed}, which is more than {MEMORY_LIMIT}, {limit}", AUTHOR)
    return limit * MIB, needed * MIB


def ceiling(text: str) -> int | None:
    """The bytes that the setting gpu-memory stands for: ``4096M``, ``4G``, 0 for ``off``, `SHARE`; None if wrong."""
    number = decimal(text[:-1])
    return number * _UNITS[text[-1]] if number and text[-1] in _UNITS else {"off": 0, "share": SHARE}.get(text)
