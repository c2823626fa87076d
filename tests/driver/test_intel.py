# SPDX-License-Identifier: Apache-2.0
"""Intel's real compute runtime and compilers, as Debian packages them, on simulated nodes of i915.

The compilers need LLVM and clang of the host's, which are no files of the vendor's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.driver.conftest import PACKAGES
from tests.driver.images import compile_look
from tests.integration import roots
from tests.integration.engines import Bundle, Installed, in_turn, start

# What the runtime opens: itself by its ICD, the front end and the back end of the compiler, Level Zero.
OPENED = (
    f"/usr/lib/{roots.MULTIARCH}/intel-opencl/libigdrcl.so",
    *("libigdfcl.so.1", "libigc.so.1", "libopencl-clang.so.14", "libze_intel_gpu.so.1"),
)
# The image has a C++ library, and a terminal library of its own, which the host's must not hide.
INSTALL = """
oci-gpu-hook inventory refresh >&2
ldd /usr/lib/{multiarch}/libLLVM-14.so.1 | sed -n 's/.* => \\(\\/[^ ]*\\) .*/\\1/p' >/run/n
cp -n $(grep -e stdc -e libgcc -e libm[.] -e libz[.] -e libtinfo /run/n) {root}/usr/lib/{multiarch}/
ldconfig -r {root}
"""
LIST = "-p | sed -n 's/^[[:space:]]*\\(lib[^ ]*\\) .* => /\\1 /p'"


def test_intels_compilers_load_as_on_the_host(installed: Installed, patterns: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(patterns["debian"], tmp_path / "rootfs", symlinks=True)
    made = Bundle(tmp_path, installed.hooks()).asks(None, None, OCI_INTEL="0")
    compile_look("cc", made.rootfs / "app/open")
    # The second list is as apt-get would have it made.
    look = f"ldconfig {LIST}; echo ==again; ldconfig -C /app/cache; ldconfig -C /app/cache {LIST}"
    made.runs("/bin/sh", "-c", f"/app/open {' '.join(OPENED)}; echo ==first; {look}")
    before = INSTALL.format(root=made.rootfs, multiarch=roots.MULTIARCH)
    scripts = {
        "host": f"{made.rootfs}/app/open {' '.join(OPENED)}",
        "doctor": "oci-gpu-hook doctor | grep OCI_INTEL",
        "container": f"{start('runc', made)} 2>&1",
    }
    seen = in_turn(installed, scripts, before, packages=(PACKAGES / "intel",), vendors=("intel",))
    assert seen["host"] == [f"opened: {name}" for name in OPENED], seen["host"]
    assert [line.split()[0] for line in seen["doctor"]] == ["pass"], seen["doctor"]
    opened, *lists = "\n".join(seen["container"]).split("\n==")
    assert opened.split("\n") == seen["host"]
    for listed in lists:
        # The first of each name counts.
        paths = dict([line.split(maxsplit=1) for line in reversed(listed.split("\n")[1:])])
        assert paths["libLLVM-14.so.1"].startswith("/usr/local/oci-gpu-hook/OCI_INTEL/"), listed
        assert not paths["libtinfo.so.6"].startswith("/usr/local/"), listed
