# SPDX-License-Identifier: Apache-2.0
"""Who starts containers without any hook: Charliecloud, which copies the driver's files, and systemd-nspawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engines import Installed, in_turn
from tests.integration.inside import COMPUTE, node
from tests.integration.test_lxc import allowed

ROOT = """
cp -a {root} /run/root
cat >/run/root/look <<'END'
nvidia-smi | sed 's/^/smi /'
/app/cuda
mknod /dev/tried c 195 0 2>&1
exit 0
END
for name in proc dev sys tmp run home mnt opt var; do mkdir -p /run/root/$name; done
"""
CHARLIECLOUD = """
ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
export USER=root
for name in hosts resolv.conf passwd group; do touch /run/root/etc/$name; done
cp /bin/true /run/root/usr/bin/true
ch-fromhost --nvidia /run/root
ch-run /run/root -- /bin/sh /look
echo of the host
find -L $(nvidia-container-cli list --binaries --libraries) -maxdepth 0 | wc -l
nvidia-container-cli list --binaries --libraries | wc -l
"""
NSPAWN = """
printf 'ID=test\\n' >/run/root/etc/os-release
words=$(oci-gpu-hook flags nspawn --directory /run/root 1 6 2>/run/said)
eval "systemd-nspawn --register=no --quiet --directory /run/root $words /bin/sh /look" 2>&1 </dev/null || echo failed
sed 's/^/said /' /run/said
"""
FILES = """
mkdir -p /etc/systemd/nspawn
oci-gpu-hook flags nspawn --way file --directory /run/root 3 2>/dev/null >/run/lines
sed '/^# systemd-nspawn@/,$d' /run/lines >/etc/systemd/nspawn/files.nspawn
systemd-nspawn --register=no --quiet --machine files --directory /run/root /bin/sh /look 2>&1 </dev/null || echo failed
sed 's/^/line /' /run/lines
"""


def test_charliecloud_copies_the_drivers_files(installed: Installed, patterns: dict[str, Path]) -> None:
    """Its containers have the host's /dev, and so every GPU."""
    script = ROOT.format(root=patterns["debian"]) + CHARLIECLOUD
    lines = in_turn(installed, {"ch": script}, description="v100")["ch"]
    assert allowed(lines) >= COMPUTE | {"/dev/nvidia0"}, lines
    assert "cuInit 0, 1 devices" in lines, lines
    there, listed = lines[lines.index("of the host") + 1 :]
    assert there == listed and int(listed) > 30


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_nspawn_has_what_its_words_say(installed: Installed, patterns: dict[str, Path], cgroup: str) -> None:
    """Device rules are systemd's, which PID 1 of the node sets; what the words cannot say is told."""
    before = ROOT.format(root=patterns["debian"])
    scripts = {"words": NSPAWN, "file": FILES}
    found = in_turn(installed, scripts, before, description="h100x8", cgroup=cgroup, booted=True)
    lines = found["words"]
    assert allowed(lines) == COMPUTE | {node(1), node(6)}, lines
    assert "cuInit 0, 2 devices" in lines, lines
    assert "mknod: /dev/tried: Operation not permitted" in lines, lines
    said = [line for line in lines if line.startswith("said ")]
    assert any("shows in the container's /proc/driver/nvidia" in line for line in said), said
    assert allowed(found["file"]) == COMPUTE | {node(3)}, found["file"]
    assert f"line DeviceAllow={node(3)} rw" in found["file"]
