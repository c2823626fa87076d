# SPDX-License-Identifier: Apache-2.0
"""Limits of GPU memory that NVIDIA's driver holds by itself: NVML of R615 and later, ``nvmlDeviceSetMemoryLimits_v1``.

NVML opens the GPU, takes seconds and may crash: a child loads it, and is killed when its time is up.  What it sets goes
with the cgroup.  Sets the hard limit alone: a soft one is added to the cgroups above, and stays there.
"""

from __future__ import annotations

import posix
from select import POLLIN, poll
from signal import SIGKILL

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.kernel import alarm, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_open_to_others, is_regular
from oci_gpu_hook.request.words import ADMINISTRATOR

# With the wait for a lock (`host.statefile`) below those of the whole start, see `kernel.alarm`.
_SECONDS = 18
_DONE, _LATE = b"done", b"NVML has not answered in %d seconds" % _SECONDS
# Of nvmlReturn_t, what an administrator can do something about.
_REASONS = {
    3: ": the driver counts no memory here: RmMemacctMode of its module is 0, or the GPU is divided by MIG",
    6: ": the driver does not find the GPU or the cgroup",
}


def limit(library: int, cgroup: str, limits: tuple[tuple[str, int], ...]) -> None:
    """DriverError if NVML refuses, crashes or does not answer in time, OSError if the library is not root's alone.
    library: libnvidia-ml, open by O_PATH; cgroup: of v2; limits: bytes by PCI address.
    """
    status = posix.fstat(library)
    if not is_regular(status) or is_open_to_others(status):
        raise OSError("others than root may write to libnvidia-ml")
    answer, mine = posix.pipe()
    child = posix.fork()
    if not child:
        _end(mine, library, cgroup, limits)
    posix.close(mine)
    with closing(answer):
        waiting = poll()
        waiting.register(answer, POLLIN)
        said = posix.read(answer, 4096) if waiting.poll(_SECONDS * 1000) else _LATE
    if said == _LATE:
        # One that hangs in the driver, as it may at its end too, ends when that lets it go: none is waited for.
        posix.kill(child, SIGKILL)
    if said != _DONE:
        why = said.decode(errors="replace") or "libnvidia-ml crashed"
        raise DriverError(f"cannot limit the memory of the devices (NVML): {why}", f"of gpu-memory-by {ADMINISTRATOR}")


def _end(answer: int, library: int, cgroup: str, limits: tuple[tuple[str, int], ...]) -> None:
    try:
        # It must not outlive a start that is killed, nor keep its folder; alarm(2) is not inherited.
        alarm.begin()
        posix.chdir("/")
        # A start's umask is 0, for what it makes in the container.
        posix.umask(0o022)
        # An engine waits until its hook's output is closed, a lease for its lock: one that hangs must hold neither.
        for fd in {*map(int, posix.listdir("/proc/self/fd"))} - {answer, library}:
            # Which ignores that the folder's own is closed.
            posix.closerange(fd, fd + 1)
        for _ in range(3):
            # NVML may start nvidia-modprobe, which is to have them.
            posix.set_inheritable(posix.open("/dev/null", posix.O_RDWR), True)
        for address, most in limits:
            _limit(f"/proc/self/fd/{library}", cgroup, address, most)
        posix.write(answer, _DONE)
    except AttributeError:
        posix.write(answer, b"this driver's NVML limits no memory: it does from R615 on")
    except Exception as err:
        kind = "" if isinstance(err, OSError) else f"{type(err).__name__}: "
        posix.write(answer, f"{kind}{err}".encode(errors="replace"))
    finally:
        posix._exit(0)


def _limit(library: str, cgroup: str, address: str, most: int) -> None:
    """The structs nvmlMemoryLimits_v1_t are of words: the cgroup's name, soft, hard, and what is used."""
    name, text = bytearray(cgroup.encode() + bytes(8)), bytearray(address.encode() + bytes(8))
    device, struct = bytearray(8), bytearray(syscalls.words(syscalls.address_of(name), 0, most, 0))
    _call(library, "nvmlInit_v2")
    _call(library, "nvmlDeviceGetHandleByPciBusId_v2", syscalls.address_of(text), syscalls.address_of(device))
    of_gpu = syscalls.word(device, 0), syscalls.address_of(struct)
    _call(library, "nvmlDeviceSetMemoryLimits_v1", *of_gpu)
    _call(library, "nvmlDeviceGetMemoryLimits_v1", *of_gpu)
    if syscalls.word(struct, 2) != most:
        raise OSError(f"NVML has taken {most} bytes as the limit of {address}, and says {syscalls.word(struct, 2)}")


def _call(library: str, function: str, *values: int) -> None:
    code = syscalls.function_of(library, function)(*values)
    if code:
        raise OSError(f"{function} gives {code}{_REASONS.get(code, '')}")
