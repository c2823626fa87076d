# SPDX-License-Identifier: Apache-2.0
"""WSL 2: one device and the libraries that Windows shows, as a `Vendor`.  Reads only.

All GPUs lie behind /dev/dxg: a request that names one gets the node, as one that says ``all``.  The libraries find
those of Windows by libdxcore, at the driver store's path on the host: so all lies where the host has it.
"""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.formats import glob
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from oci_gpu_hook.vendors.platform import DXG, KIND, WSL_FOLDER
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Group, Item, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.vendors.vendorinventory import See

LIBRARIES, DRIVERS = f"{WSL_FOLDER}/lib", f"{WSL_FOLDER}/drivers"

# CUDA's and dxcore's are what the others need; what else is there is the driver's or Direct3D's.
REQUIRED = ("libcuda.so.1", "libdxcore.so")

# A package of NVIDIA's display driver: nv_dispi.inf_amd64_..., nvlt.inf_amd64_... for notebooks, and others.  After an
# upgrade Windows keeps the old one for a while; which one is in force only dxcore can tell, so each is mounted.
_STORE, _MAX_STORES = "nv*.inf_*", 16
# The store has hundreds of files; these are the ones that NVIDIA's libraries for Linux open.
OF_STORE = ("lib*.so*", "*.bin", "*.dll")

_HINT = "the administrator of the Windows host must install NVIDIA's driver there and restart WSL: wsl --shutdown"


def vendor(host: HostRoot, see: See = lambda _: None) -> Vendor:
    """What this WSL 2 gives to containers; DriverError if Windows has no driver of NVIDIA's for it."""
    for folder in (WSL_FOLDER, LIBRARIES, DRIVERS):
        see(folder)
    for name in REQUIRED:
        status = host.stat(f"{LIBRARIES}/{name}")
        if status is None or not is_regular(status):
            raise DriverError(f"this WSL 2 has no driver of NVIDIA's: {LIBRARIES}/{name} is missing", _HINT)
    required = [Item(f"{LIBRARIES}/{name}", LIBRARIES, required=True) for name in REQUIRED]
    libraries = (*required, Item(f"{LIBRARIES}/lib*.so*", LIBRARIES))
    stored = [Item(f"{store}/{pattern}") for store in stores(host, see) for pattern in OF_STORE]
    # WSL's PATH has the folder of the libraries, and a container's does not.
    main = Group("wsl", (DevicePattern(DXG),), libraries, (Item(f"{LIBRARIES}/nvidia-smi", "/usr/bin"),))
    return Vendor(WSL_FOLDER, VISIBLE_DEVICES, (main, Group("driver store", files=tuple(stored))), KIND)


def stores(host: HostRoot, see: See = lambda _: None) -> list[str]:
    found = [f"{DRIVERS}/{name}" for name in host.names(DRIVERS) if glob.matches(_STORE, name)]
    for store in found:
        see(store)
    return [store for store in found if host.stat(f"{store}/libcuda.so.1.1") is not None][:_MAX_STORES]
