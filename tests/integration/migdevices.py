# SPDX-License-Identifier: Apache-2.0
"""The division of the GPU of the node ``h100mig``: how its MIG devices go, come, and are made again.

Shell commands for that node: the kernel module's folders and files, and what NVML says.  Must not know the hook.
"""

from __future__ import annotations

CAPABILITIES = "/proc/driver/nvidia/capabilities"
NVML = "/proc/driver/gpunode/description"


def instance(path: str) -> str:
    """The commands that make a MIG instance's file, with the minor that the kernel has for it."""
    gpu, _, *rest = path.split("/")
    key = "/".join([gpu, *rest])
    return f"""mkdir -p {CAPABILITIES}/{path}
minor=$(sed -n 's,^{key}/access ,,p' /proc/driver/nvidia-caps/mig-minors)
printf 'DeviceFileMinor: %s\\nDeviceFileMode: 292\\nDeviceFileModify: 1\\n' $minor >{CAPABILITIES}/{path}/access
major=$(sed -n 's/ nvidia-caps$//p' /proc/devices)
test -e /dev/nvidia-caps/nvidia-cap$minor || mknod -m 444 /dev/nvidia-caps/nvidia-cap$minor c $major $minor
"""


# Of gi5, which has two compute instances: as NVML names them, and how they are named once they were made again.
FIRST, SECOND = ("MIG-27d4e8c1-9b36-5f02-8e7a-c15f90a3b46d", "MIG-b86f1e52-04ad-5c79-a3d8-62f97e0b1c34")
FIRST_ANEW, SECOND_ANEW = ("MIG-5a7f03d1-2c48-5e96-b1d0-8f36e94c27a5", "MIG-c94b16e8-70f3-5d2a-8a5e-14d7f0b3926c")
# With another profile, under the same numbers: no name and no node in the kernel's folders is another than before.
# NVML, which numbers them in the order of its list, has them the other way round.
MADE_ANEW = f"""rm -r {CAPABILITIES}/gpu1/mig/gi5
{instance("gpu1/mig/gi5")}{instance("gpu1/mig/gi5/ci0")}{instance("gpu1/mig/gi5/ci1")}
sed -e 's/{FIRST}/{SECOND_ANEW}/' -e 's/{SECOND}/{FIRST_ANEW}/' -e 's/1c.2g.20gb/1c.2g.20gb+me/' \\
    -e 's/^mig 5 0$/mig 5 x/' -e 's/^mig 5 1$/mig 5 0/' -e 's/^mig 5 x$/mig 5 1/' {NVML} >/run/other-description
cat /run/other-description >{NVML}
"""
# What the kernel shows after it dropped the folder's inode from memory: the same number, and another time.
SHOWN_ONCE_MORE = f"touch {CAPABILITIES}/gpu1/mig/gi5/ci0\n"
# All as it was at first.
KEEP = f"cp -a {CAPABILITIES} /run/capabilities; cp {NVML} /run/description\n"
RESTORE = f"rm -rf {CAPABILITIES}; cp -a /run/capabilities {CAPABILITIES}; cat /run/description >{NVML}\n"
