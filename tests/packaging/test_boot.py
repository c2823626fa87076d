# SPDX-License-Identifier: Apache-2.0
"""The units on a booted node: a real systemd starts them, and their sandboxes let them do their work and no more.

The nodes of a fresh boot are those that were not made: /dev has none of NVIDIA's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.engines import REPOSITORY, SIMULATED, Outcome, on_node, printed
from tests.packaging.test_install_node import deliver, generated, make_payload
from tests.selinux.files import write

OPENSHIFT = REPOSITORY / "packaging/openshift"
BOOTED = Path(__file__).with_name("booted.sh")
SERVICES = ("devices", "inventory", "cdi")
NODES = "find /dev -path '/dev/nvidia*' -type c -exec stat -c '%n %Hr:%Lr %a' {} + | sort"
# What one command of the shell does in its time, waited for.
WAIT = """
wait_for() { for _ in $(seq 6000); do [ -e "$1" ] && return; sleep 0.1; done; echo "no $1 yet" >&2; return 1; }
"""


def booted(script: str) -> Outcome:
    return on_node(f"rm -rf /dev/nvidia*\n{BOOTED} <<'END'\n{WAIT}{script}\nEND\n", description="h100mig")


def test_a_boot_makes_the_nodes_and_saves_the_inventory_and_what_changes_is_saved_anew() -> None:
    """The nodes as the driver's own programs have made them on the whole node.

    Anew after other libraries of the driver have come, and a MIG device; and when a start has asked for it, by name.
    """
    # The other families have programs of their own.
    made = f"{NODES} | grep -v -e imex -e nvswitch -e nvlink -e nvidia-fs"
    saved = "/run/oci-gpu-hook/inventory"
    forget = f"rm {saved}\nsleep 0.2\n[ ! -e {saved} ]"
    out = booted(
        f"systemctl is-system-running\n{made}\n"
        f"oci-gpu-hook info --saved >/run/shown\nstat -c %a {saved}\n"
        "systemctl is-active oci-gpu-hook-inventory.path\n"
        f"{forget}\ncp /etc/ld.so.cache /etc/new && mv /etc/new /etc/ld.so.cache\nwait_for {saved}\n"
        f"{forget}\nmknod /dev/nvidia-caps/nvidia-cap300 c 508 300\nwait_for {saved}\n"
        f"{forget}\n: >/run/wanted && mv /run/wanted /run/oci-gpu-hook/refresh-wanted\nwait_for {saved}"
    ).printed()
    state, *nodes, mode, path = out.splitlines()
    assert (state, mode, path) == ("running", "644", "active")
    assert nodes == on_node(made, description="h100mig").printed().splitlines()
    assert any("/dev/nvidia-caps/" in line for line in nodes)


def test_the_spec_is_kept_once_an_administrator_says_so() -> None:
    out = booted(
        "systemctl is-enabled oci-gpu-hook-cdi || :\n[ ! -e /run/cdi ]\n"
        "systemctl enable oci-gpu-hook-cdi 2>/dev/null\n"
        "systemctl start oci-gpu-hook-inventory\nwait_for /run/cdi/oci-gpu-hook.yaml\n"
        "rm /run/cdi/oci-gpu-hook.yaml\nsystemctl disable oci-gpu-hook-cdi 2>/dev/null\n"
        "systemctl start oci-gpu-hook-inventory\nls /run/cdi | wc -l"
    ).printed()
    assert out.split() == ["disabled", "0"]


def test_features_and_metrics_are_written_in_their_sandboxes_and_go_with_the_driver() -> None:
    """The features with each refresh of the inventory, the metrics with the kernel's log; none without a setting."""
    out = booted(
        """
features=/etc/kubernetes/node-feature-discovery/features.d/oci-gpu-hook gpus=/run/gpus.prom
systemctl start oci-gpu-hook-metrics oci-gpu-hook-features oci-gpu-hook-gpu-metrics
sed -n 's/^no setting //p' /run/said | sort
printf '%s\\n' "features = $features" "gpu-metrics = $gpus" 'metrics = /run/counts.prom' >/etc/oci-gpu-hook.conf
systemctl start oci-gpu-hook-metrics
grep -c '^# HELP' /run/counts.prom
mkdir -p /etc/kubernetes
systemctl enable oci-gpu-hook-features oci-gpu-hook-gpu-metrics.timer 2>/dev/null
systemctl start oci-gpu-hook-inventory
wait_for $features
grep -c oci-gpu-hook.validation=none $features
systemctl start oci-gpu-hook-gpu-metrics.timer
wait_for $gpus
grep -c 'gpu_healthy{.*} 1' $gpus
sed -n 's/^oci_gpu_hook_kernel_log_readable //p' $gpus
mkdir /run/none
mount --bind /run/none /run/simulated/driver/nvidia
systemctl start oci-gpu-hook-inventory oci-gpu-hook-gpu-metrics
for _ in $(seq 6000); do [ -e $features ] || break; sleep 0.1; done
ls $features 2>/dev/null || :
# One that the timer has started may have looked before.
for _ in $(seq 600); do
    if grep -q '^oci_gpu_hook_driver_up 0' $gpus; then break; fi
    systemctl start oci-gpu-hook-gpu-metrics || :
    sleep 0.1
done
grep driver_up $gpus
cat /run/said >&2
"""
    ).printed()
    *unset, counts, validated, healthy, readable = out.split("\n")[:7]
    assert unset == ["'features': nothing written", "'gpu-metrics': nothing written", "'metrics': not counting"]
    assert int(counts) and (validated, healthy, readable) == ("1", "5", "1")
    assert out.endswith("oci_gpu_hook_driver_up 0\n")
    assert "/features.d/" not in out


def test_a_validation_marks_the_node_and_stops_nothing() -> None:
    """In its sandbox a container is made and every GPU computes; then the driver has no nodes any more.

    The features are still being written when the next validation ends.
    """
    out = booted(
        f"""
install -m 0755 {SIMULATED} /usr/bin/simulated-runc
features=/etc/kubernetes/node-feature-discovery/features.d/oci-gpu-hook
printf '%s\n' 'runtime = /usr/bin/simulated-runc' 'validation-folder = /run/nvidia/validations' \
    "features = $features" >/etc/oci-gpu-hook.conf
mkdir -p /etc/kubernetes /run/systemd/system/oci-gpu-hook-features.service.d
printf '[Service]\nExecStartPost=/bin/sleep 600\n' >/run/systemd/system/oci-gpu-hook-features.service.d/slow.conf
systemctl daemon-reload
systemctl is-enabled oci-gpu-hook-validate || :
systemctl enable oci-gpu-hook-validate oci-gpu-hook-features 2>/dev/null
systemctl start --no-block oci-gpu-hook-validate
wait_for /run/nvidia/validations/cuda-ready
ls /run/nvidia/validations
until [ "$(systemctl is-active oci-gpu-hook-validate)" = inactive ]; do sleep 0.1; done
until grep -q validation=passed $features; do sleep 0.1; done
systemctl is-active oci-gpu-hook-features || :
rm /dev/nvidiactl
! systemctl start oci-gpu-hook-validate 2>/dev/null
systemctl is-failed oci-gpu-hook-validate
systemctl start oci-gpu-hook-cdi
systemctl is-failed oci-gpu-hook-cdi oci-gpu-hook-inventory || :
ls /run/nvidia/validations
for _ in $(seq 6000); do grep -q validation=passed $features || break; sleep 0.1; done
grep -c validation=failed $features
touch /run/nvidia/validations/driver-ready
mkdir /run/none && mount --bind /run/none /proc/driver/nvidia
! systemctl start oci-gpu-hook-validate 2>/dev/null
ls /run/nvidia/validations
"""
    ).printed()
    *said, marked = out.split()
    assert marked == "1"
    enabled, *files, features, failed, cdi, inventory = said
    assert enabled == "disabled"
    assert sorted(files) == ["cuda-ready", "driver-ready", "toolkit-ready"]
    assert (features, failed, cdi, inventory) == ("activating", "failed", "inactive", "inactive")


def test_a_service_writes_to_no_file_system_of_the_host() -> None:
    """Tried in its own sandbox, in the place of its command.  /run is left out: systemd 252 leaves it open here."""
    out = booted(
        f"""
cat >/run/try <<'TRY'
for folder in /etc /usr /var/lib /root /home; do
    if touch "$folder/tried" 2>/dev/null; then rm "$folder/tried"; echo "$1 $folder"; fi
done
echo "$1 tried"
TRY
for service in {" ".join(SERVICES)}; do
    drop_in=/run/systemd/system/oci-gpu-hook-$service.service.d
    mkdir -p $drop_in
    printf '[Service]\\nExecStart=\\nExecStart=/bin/sh /run/try %s\\nStandardOutput=append:/run/written\\n' \\
        $service >$drop_in/try.conf
done
systemctl daemon-reload
for service in {" ".join(SERVICES)}; do systemctl start oci-gpu-hook-$service; done
cat /run/written
"""
    ).printed()
    # A set: the path unit may have started one of them once more.
    assert set(out.splitlines()) == {f"{service} tried" for service in SERVICES}


# What the node's inventory knows of MIG devices, which NVML alone can tell.
NAMED = """
named() {
    oci-gpu-hook info --saved --json | python3 -c '
import json, sys
found = json.load(sys.stdin)
print(len([it for it in found["mig_devices"] if it["uuid"].startswith("MIG-")]), len(found["mig_devices"]))'
}
saved=/run/oci-gpu-hook/inventory
"""
# A start has asked for it, and a MIG device has been made.
CHANGES = """
rm $saved; sleep 0.2; [ ! -e $saved ]
: >/run/wanted && mv /run/wanted /run/oci-gpu-hook/refresh-wanted
wait_for $saved; named
rm $saved; sleep 0.2; [ ! -e $saved ]
mknod /dev/nvidia-caps/nvidia-cap300 c 508 300
wait_for $saved; named
"""


def test_a_node_of_the_machineconfig_asks_nvml(tmp_path: Path) -> None:
    """At its boot, and when a start or a MIG device wants it, by what the MachineConfig brings alone."""
    config = generated(tmp_path)
    node = tmp_path / "node"
    deliver(config, node)
    # As Ignition enables units.
    presets = [f"{'enable' if it['enabled'] else 'disable'} {it['name']}\n" for it in config["systemd"]["units"]]
    for name, text in (
        ("etc/systemd/system-preset/20-ignition.preset", "".join(presets)),
        *((f"usr/lib/systemd/system/{it['name']}", it["contents"]) for it in config["systemd"]["units"]),
    ):
        write(node / name, text)
    script = f"""
rm -rf /dev/nvidia* /run/oci-gpu-hook
cp -R {node}/. /
systemd-tmpfiles --create /etc/tmpfiles.d/oci-gpu-hook.conf
mount -t tmpfs none /usr/lib/python3/dist-packages
{BOOTED} <<'END'
{WAIT}{NAMED}
PATH=/usr/local/bin:$PATH
wait_for $saved
ls /run/containers/oci/hooks.d
named{CHANGES}END
"""
    out = on_node(script, description="h100mig", hook=False).printed()
    assert out.split("\n") == ["oci-gpu-hook.json", *["4 4"] * 3, ""]


# A pod of the DaemonSet: no namespace of the node, no capability but one, and the node's root as a volume.
POD = """
mkdir -p /run/host
unshare --mount --pid --net --ipc --uts --cgroup --fork sh -eu -c '
mount --rbind --make-rslave / /run/host
exec setpriv --inh-caps=-all --bounding-set=-all,+sys_chroot --no-new-privs \
    env HOST=/run/host PAYLOAD={payload} GRACE=0 sh {script} {action}'
"""


def test_a_node_of_the_daemonset_asks_nvml(tmp_path: Path) -> None:
    """The node's systemd is told by what has no more than the pod; and told again at the end.

    Another start of the pod leaves off what the administrator has disabled, and has the rest done again.
    """
    payload = make_payload(tmp_path / "payload")
    vendor = payload / "usr/local/lib/oci-gpu-hook/vendor"
    for name in ("click", "pynvml.py"):
        vendor.mkdir(exist_ok=True)
        printed("cp", "-R", Path(sys.prefix, f"lib/python3.{sys.version_info[1]}/site-packages", name), vendor)
    script = f"""
systemctl stop oci-gpu-hook-inventory.path
systemctl disable $(cd /run/booted && ls -d oci-gpu-hook-*.service oci-gpu-hook-*.path) 2>/dev/null
rm -f /run/booted/oci-gpu-hook-*.service /run/booted/oci-gpu-hook-*.path /run/booted/oci-gpu-hook-*.timer || :
rm -rf /run/oci-gpu-hook /usr/bin/oci-gpu-hook /usr/lib/oci-gpu-hook /usr/libexec/oci
cp /usr/lib/systemd/system/dbus.socket /usr/lib/systemd/system/dbus.service /run/booted
systemctl daemon-reload
systemctl start dbus.service
mkdir -p /etc/crio
printf '[crio.runtime]\nhooks_dir = ["/etc/containers/oci/hooks.d"]\n' >/etc/crio/crio.conf
{NAMED}{POD.format(script=OPENSHIFT / "install-node.sh", payload=payload, action="install")}
PATH=/usr/local/bin:$PATH
wait_for $saved
systemctl is-enabled oci-gpu-hook-inventory.path oci-gpu-hook-inventory.service oci-gpu-hook-devices.service
named{CHANGES}
systemctl disable --now oci-gpu-hook-devices.service 2>/dev/null
rm $saved
{POD.format(script=OPENSHIFT / "install-node.sh", payload=payload, action="install")}
wait_for $saved
systemctl is-enabled oci-gpu-hook-devices.service oci-gpu-hook-inventory.path || :
{POD.format(script=OPENSHIFT / "install-node.sh", payload=payload, action="remove")}
systemctl is-active oci-gpu-hook-inventory.path || :
ls /usr/local/lib/systemd/system /etc/systemd/system/multi-user.target.wants 2>/dev/null || :
"""
    installed_as, *enabled_and_counts, _, device, inventory, removed, state = booted(script).printed().splitlines()
    assert installed_as.endswith("registered in /etc/containers/oci/hooks.d")
    assert enabled_and_counts == ["enabled"] * 3 + ["4 4"] * 3
    assert (device, inventory) == ("disabled", "enabled")
    assert (removed.startswith("removed"), state) == (True, "inactive")


def test_an_uninstallation_leaves_no_unit_enabled_or_active() -> None:
    """Of its own; those of another installation, here the booted one's, stay."""
    install = f"{REPOSITORY}/packaging/install.sh"
    units = "oci-gpu-hook-inventory.path oci-gpu-hook-gpu-metrics.timer"
    out = booted(
        f"""
systemctl disable --now {units} 2>/dev/null
mv /run/booted/oci-gpu-hook-inventory.path /run/booted/oci-gpu-hook-gpu-metrics.timer /run
{install} install "" /usr/local /usr/bin/python3 >/dev/null
systemctl daemon-reload
systemctl enable --now {units} 2>/dev/null
systemctl is-active {units}
{install} uninstall "" /usr/local >/dev/null
systemctl is-active {units} || :
systemctl show --value --property LoadState {units}
ls /etc/systemd/system/*.wants
"""
    ).printed()
    words = out.split()
    assert words[:2] == ["active", "active"]
    assert words[2:6] == ["inactive", "inactive", "not-found", "not-found"]
    assert "oci-gpu-hook-inventory.service" in words
    assert not {*units.split()} & {*words}
