# SPDX-License-Identifier: Apache-2.0
"""``doctor`` on the simulated node: all is well, then one planted fault at a time, each named with its remedy."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.integration import roots
from tests.integration.engines import in_turn, on_node
from tests.integration.migdevices import CAPABILITIES, MADE_ANEW

# What the node lacks of a host that is set up: ranges of ids, a runtime that images have no word with, whichever podman
# there is, and the inventory that the service would save.
SET_UP = """
for file in /etc/subuid /etc/subgid; do echo user:100000:65536 >$file; done
oci-gpu-hook inventory refresh >/dev/null 2>&1 || true
# Remedies are run: this folder is the machine's own otherwise.
mkdir -p /opt /var/lib/lxc; mount -t tmpfs none /opt
HOOKS=/usr/share/containers/oci/hooks.d
ETC=/etc/containers/oci/hooks.d
mkdir -p $ETC /etc/containers/containers.conf.d /etc/crio/crio.conf.d /etc/cdi /etc/docker
printf '[engine]\\nruntime = "runc"\\n' >/etc/containers/containers.conf.d/00-runtime.conf
command -v dockerd >/dev/null || install -m 0755 /bin/true /usr/bin/dockerd
LINK=/usr/bin/nvidia-container-runtime-hook
ln -sf ../libexec/oci/hooks.d/oci-gpu-hook $LINK
JSON=/etc/docker/daemon.json
VENDORS=/etc/oci-gpu-hook/vendors
"""
# Several faults are planted on one node in turn, each on what the first was planted on.
RESTORE = f"""
LIBCUDA=$(find /usr/lib/{roots.MULTIARCH} /usr/lib64 -name 'libcuda.so.[0-9]*.*' -type f 2>/dev/null | head -n 1)
PLACES="usr/share/containers/oci usr/libexec/oci usr/libexec/oci-gpu-hook-start usr/lib/oci-gpu-hook etc/containers
    etc/crio etc/cdi etc/subuid etc/docker ${{LINK#/}} run/oci-gpu-hook dev/nvidiactl ${{LIBCUDA#/}}"
tar -C / -cf /tmp/kept $PLACES
USERS=/sys/fs/cgroup/devices
[ -d $USERS ] || USERS=/sys/fs/cgroup
USERS=$USERS/libpod-$(printf %064d 1).scope
restore() {{
    [ ! -d $USERS ] || {{ kill $(cat $USERS/cgroup.procs); until rmdir $USERS; do sleep 0.1; done 2>/dev/null; }}
    umount /usr/bin/podman 2>/dev/null || :
    umount /var/lib/lxc 2>/dev/null || :
    for it in $PROGRAMS; do [ ! -e $it.away ] || mv $it.away $it; done
    (cd / && rm -rf $PLACES etc/oci-gpu-hook* usr/bin/crio $LINK.other usr/local/*/nvidia* \\
        usr/bin/nvidia-container-* usr/bin/kubelet etc/containerd opt/* && tar -xpf /tmp/kept)
}}
# Programs are moved away, as no package may be.
command -v containerd >/dev/null || install -m 0755 /bin/true /usr/bin/containerd
PROGRAMS="/usr/bin/podman /usr/sbin/dockerd /usr/bin/dockerd /usr/bin/containerd"
without() {{ for it in $PROGRAMS; do case $it in *$1) [ ! -e $it ] || mv $it $it.away ;; esac; done; }}
runs() {{
    plugin='[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s.options]'
    mkdir -p /etc/containerd
    printf "$plugin\\nBinaryName = \\"%s\\"\\n" $1 $2 >/etc/containerd/config.toml
}}
"""
DOCTOR = "\n{ oci-gpu-hook doctor --json || echo $?; } | tr -d '\\n' | tee /tmp/said; echo\n"
# The remedies of what was said are commands.
FIX = """python3 -c '
import json, subprocess
said = json.JSONDecoder().raw_decode(open("/tmp/said").read())[0]
for item in said["findings"]:
    if item["remedy"]:
        subprocess.run(item["remedy"], shell=True, stdout=subprocess.DEVNULL)
'"""

CRIO = "install -m 0755 /bin/true /usr/bin/crio\n"
BOTH_FOLDERS = (
    'printf \'[engine]\\nhooks_dir = [\\n"%s", # ours\\n"%s"]\\n\' $HOOKS $ETC '
    ">/etc/containers/containers.conf.d/10-hooks.conf\n"
)
NVIDIAS_RUNTIME = """printf '[crio.runtime]\\ndefault_runtime = "nvidia"\\n[crio.runtime.runtimes.nvidia]\\n
runtime_path = "/usr/bin/nvidia-container-runtime"\\n' >/etc/crio/crio.conf.d/99-nvidia.conf"""

# As podman says its version; crun is what podman takes where no file says another.
PODMAN = """
rm /etc/containers/containers.conf.d/00-runtime.conf
printf '#!/bin/sh\\necho podman version {version}\\n' >/run/podman
chmod 0755 /run/podman
mount --bind /run/podman /usr/bin/podman
"""

REINSTALL = "make deb && apt install --reinstall ./.build/deb/oci-gpu-hook_*.deb"


class Planted(NamedTuple):
    """What doctor must say of a fault; the remedies of a fixed one are run, and nothing is left to say then.

    Where what is planted passes, there is nothing else to say.
    """

    level: str
    check: str
    seen: str
    remedy: str = ""
    fixed: bool = False


# fmt: off
# By the faults that the node has.
BROKEN = {
    "no-proc-driver": Planted("fail", "driver", "the kernel module is not loaded", "modprobe nvidia"),
    "no-proc-driver no-nodes": Planted("fail", "driver", "this host has no NVIDIA driver",
        "apt install nvidia-driver nvidia-smi"),
    "library-version": Planted("fail", "libraries",
        "libcuda is of version 580.65.07, the kernel module of 580.65.06", "systemctl reboot"),
    "driver-version": Planted("fail", "libraries",
        "libcuda is of version 580.65.06, the kernel module of 580.65.07",
        "apt install --only-upgrade 'libnvidia-*' libcuda1"),
    "no-libcuda": Planted("fail", "libraries",
        "libcuda of version 580.65.06 is missing: compute is not served",
        """apt install '?and(?name("^lib(cuda1|nvidia-(.*-)?(cuda1|ml1|compute-.*))$"),?version("^580[.]65[.]06"))'"""),
    "no-gpus": Planted("fail", "GPUs", "the driver is loaded and drives no GPU", "journalctl --dmesg"),
    "no-uvm": Planted("fail", "nodes", "nvidia-uvm is not loaded", "modprobe nvidia-uvm"),
    "no-uvm-nodes": Planted("warn", "nodes", "/dev/nvidia-uvm and 1 more missing",
        "oci-gpu-hook inventory refresh --nodes"),
    "wrong-node": Planted("fail", "nodes", "is device 1:7, the driver's is 195:", "rm /dev/nvidia"),
}
ALONE = "without podman; without dockerd\n"
FILE = "/etc/containerd/config.toml"
CONFIGURE = "oci-gpu-hook configure containerd --set-as-default"
LINKED = "ln -s oci-gpu-runtime /usr/bin/nvidia-container-runtime; "
RUNTIMES = '{"runtimes": {"gpu": {"path": "%s"}}, "default-runtime": "gpu"}'
# By the commands that plant them.
PLANTED = {
    "rm $LINK":
        Planted("warn", "Docker", "there is no nvidia-container-runtime-hook in dockerd's PATH",
            f"{REINSTALL} ./.build/deb/oci-gpu-hook-docker_*.deb && systemctl restart docker  # in"),
    "ln -sf /opt/gone $LINK":
        Planted("fail", "Docker", "/usr/bin/nvidia-container-runtime-hook leads nowhere",
            "rm /usr/bin/nvidia-container-runtime-hook && "),
    "rm $LINK; install -m 0755 /bin/true $LINK":
        Planted("warn", "Docker",
            "'docker run --gpus' starts /usr/bin/nvidia-container-runtime-hook, which is another's",
            "mv /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-runtime-hook.other && "),
    "install -m 0755 /bin/true /usr/local/bin/nvidia-container-runtime-hook; "
    "install -m 0755 /bin/true /usr/bin/nvidia-container-toolkit":
        Planted("warn", "Docker",
            "'docker run --gpus' starts /usr/local/bin/nvidia-container-runtime-hook, which is another's",
            "apt remove nvidia-container-toolkit-base && "),
    "install -m 0755 /bin/true /usr/bin/nvidia-container-toolkit":
        Planted("warn", "Docker", "/usr/bin/nvidia-container-toolkit is NVIDIA's",
            "apt remove nvidia-container-toolkit-base"),
    "install -m 0755 /bin/true /usr/local/sbin/nvidia-cdi-hook":
        Planted("warn", "Docker", "/usr/local/sbin/nvidia-cdi-hook is NVIDIA's, which may serve --gpus",
            "apt remove nvidia-container-toolkit-base"),
    "mkdir $JSON":
        Planted("warn", "Docker", "daemon.json: it cannot be read as a file of at most", "vi /etc/docker/daemon.json"),
    "mkdir -m 0777 /etc/docker/theirs; echo '{}' >/etc/docker/theirs/d; ln -s theirs/d $JSON":
        Planted("warn", "Docker", "/etc/docker/daemon.json: 'd' lies in a folder that others than root may write to",
            "rm /etc/docker/daemon.json  # a link", True),
    "echo '{}' >$JSON; chmod 0666 $JSON":
        Planted("warn", "Docker", "/etc/docker/daemon.json: others than root may write to it",
            "chmod go-w /etc/docker", True),
    f"printf '{RUNTIMES}' /opt/oci-gpu-runtime >$JSON":
        Planted("fail", "Docker",
            "/etc/docker/daemon.json has /opt/oci-gpu-runtime as the runtime gpu, the default, and it is not there",
            REINSTALL),
    f"printf '{RUNTIMES}' /usr/bin/nvidia-container-runtime >$JSON":
        Planted("warn", "other hooks", "/etc/docker/daemon.json has NVIDIA's runtime as gpu, the default: it may keep",
            "nvidia-ctk runtime configure --runtime=docker"),
    "chmod 0600 /dev/nvidiactl":
        Planted("warn", "nodes", "/dev/nvidiactl of mode 0600", "chmod 0666 /dev/nvidiactl", True),
    "rm /run/oci-gpu-hook/inventory":
        Planted("warn", "inventory", "none is saved", "oci-gpu-hook inventory refresh", True),
    "rm $HOOKS/oci-gpu-hook.json":
        Planted("fail", "hook in podman", "it is not registered", REINSTALL),
    BOTH_FOLDERS + """echo '{"version":"1.0.0","hook":{"path":"/bin/true"},"when":{"always":true},'"""
    """'"stages":["prestart"]}' >$ETC/oci-gpu-hook.json""":
        Planted("fail", "hook in podman", "/etc/containers/oci/hooks.d/oci-gpu-hook.json masks /usr/share/",
            "rm /etc/containers/oci/hooks.d/oci-gpu-hook.json", True),
    ": >$HOOKS/other.json":
        Planted("fail", "hook in podman", "/other.json stops every container",
            "rm /usr/share/containers/oci/hooks.d/other.json", True),
    "sed s/createRuntime/prestart/ $HOOKS/oci-gpu-hook.json >$HOOKS/00-gpu.json":
        Planted("fail", "hook in podman", "registered twice", "rm /usr/share/containers/oci/hooks.d/00-gpu.json", True),
    "sed -i s/createRuntime/createContainer/ $HOOKS/oci-gpu-hook.json":
        Planted("fail", "hook in podman", "registers it for createContainer", REINSTALL),
    """sed -i 's/"oci-gpu-hook", "createRuntime"/"oci-gpu-hook"/' $HOOKS/oci-gpu-hook.json""":
        Planted("fail", "hook in podman",
            "starts it with oci-gpu-hook, a stage that it does not serve: it stops every container",
            REINSTALL),
    """sed -i 's/"args"/"timeout": 0, "args"/' $HOOKS/oci-gpu-hook.json""":
        Planted("fail", "hook in podman", "gives it 0 seconds: it stops every container", REINSTALL),
    """sed -i 's/"args"/"timeout": 30, "args"/' $HOOKS/oci-gpu-hook.json""":
        Planted("warn", "hook in podman",
            "gives it a timeout: if other hooks run before it, crun fails some containers",
            REINSTALL),
    "sed 's/1[.]0[.]0/9.0.0/' $HOOKS/oci-gpu-hook.json >$HOOKS/other.json":
        Planted("fail", "hook in podman",
            "/other.json stops every container: its version 9.0.0 is unknown to engines",
            "rm /usr/share/containers/oci/hooks.d/other.json", True),
    'sed \'s/."createRuntime".$/["prestrat"]/\' $HOOKS/oci-gpu-hook.json >$HOOKS/other.json':
        Planted("fail", "hook in podman",
            "/other.json stops every container: its stage prestrat is unknown to engines",
            "rm /usr/share/containers/oci/hooks.d/other.json", True),
    CRIO + """printf '[crio]\\n[crio.runtime]\\nhooks_dir = ["/opt/hooks.d"]\\n' >/etc/crio/crio.conf""":
        Planted("fail", "hook in CRI-O", "CRI-O looks in /opt/hooks.d (/etc/crio/crio.conf)",
            "ln -s /usr/share/containers/oci/hooks.d/oci-gpu-hook.json /opt/hooks.d", True),
    "sed 's|[^\"]*libexec/oci/hooks.d/oci-gpu-hook|/usr/bin/nvidia-container-runtime-hook|' "
    "$HOOKS/oci-gpu-hook.json >$HOOKS/oci-nvidia-hook.json":
        Planted("fail", "other hooks", "GPUs are given twice",
            "rm /usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", True),
    CRIO + NVIDIAS_RUNTIME:
        Planted("fail", "other hooks",
            "/etc/crio/crio.conf.d/99-nvidia.conf has NVIDIA's runtime as nvidia, the default",
            "sed -i '/^ *default_runtime *=/d' /etc/crio/crio.conf.d/99-nvidia.conf && systemctl restart crio"),
    "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml; sed -i s,/dev/nvidia7,/dev/nvidia70, /etc/cdi/gpu.yaml":
        Planted("fail", "CDI", "/etc/cdi/gpu.yaml: it does not say what the host has now",
            "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml", True),
    # Each engine, and where else it looks.
    "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml; "
    "printf '[engine]\\ncdi_spec_dirs = [\"/opt/cdi\"]\\n' >/etc/containers/containers.conf.d/cdi.conf":
        Planted("warn", "CDI", "podman does not read /etc/cdi/gpu.yaml: "
            "/etc/containers/containers.conf.d/cdi.conf names /opt/cdi",
            "oci-gpu-hook cdi generate --output /opt/cdi/gpu.yaml", True),
    "mkdir -p /opt/e; echo '{\"cdi-spec-dirs\": [\"/etc/cdi\", \"/opt/e\"]}' >$JSON; "
    "echo '{}' >/opt/e/theirs.json; chmod 0666 /opt/e/theirs.json":
        Planted("warn", "CDI", "/opt/e/theirs.json: others than root may write to it", "rm /opt/e/theirs.json", True),
    "mkdir -p /opt/u/cdi; chmod 0777 /opt/u; ln -s /usr/bin/passwd /opt/u/cdi/a.yaml; "
    "echo '{\"cdi-spec-dirs\": [\"/etc/cdi\", \"/opt/u/cdi\"]}' >$JSON":
        Planted("warn", "CDI", "/opt/u/cdi: 'cdi' lies in a folder that others than root may write to, and who",
            "vi /etc/docker/daemon.json"),
    "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml; mv /etc/cdi/gpu.yaml /tmp/x; "
    "sed s,/usr/libexec,/usr/local/libexec, /tmp/x >/etc/cdi/gpu.yaml":
        Planted("fail", "CDI", "/etc/cdi/gpu.yaml: it starts '/usr/local/libexec/oci-gpu-hook-start', which",
            "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml", True),
    "oci-gpu-hook configure docker --swarm GPU --shares 2; sed -i s/GPU=GPU-......../GPU=GPU-00000000/ $JSON":
        Planted("fail", "Docker", "/etc/docker/daemon.json gives GPU-00000000-",
            "oci-gpu-hook configure docker --swarm GPU --shares=2 && systemctl restart docker", True),
    # A boot may give nvidia-uvm another major.
    "mount -t tmpfs none /var/lib/lxc; mkdir /var/lib/lxc/one; oci-gpu-hook flags lxc 0 >/var/lib/lxc/one/config; "
    "sed -i 's/ c \\([0-9]*\\):0 rw/ c 9\\1:0 rw/' /var/lib/lxc/one/config":
        Planted("fail", "LXC", "/var/lib/lxc/one/config has no rule for /dev/nvidia-uvm, now device ",
            "oci-gpu-hook flags lxc --write /var/lib/lxc/one/config 0", True),
    "chmod 0777 /etc/cdi":
        Planted("warn", "CDI", "/etc/cdi: others than root may write to it, and who writes there chooses what",
            "chown root: /etc/cdi && chmod go-w /etc/cdi", True),
    "printf 'cdiVersion: 0.5.0\\nkind: nvidia.com/gpu\\ncontainerEdits:\\n  mounts:\\n"
    "  - hostPath: /lib/libcuda.so.580.65.06\\n' "
    ">/etc/cdi/nvidia.yaml":
        Planted("warn", "CDI", "/etc/cdi/nvidia.yaml was made by another program", "rm /etc/cdi/nvidia.yaml", True),
    "printf '# ours\\ndevcie-cgroup = on\\n' >/etc/oci-gpu-hook.conf":
        Planted("fail", "settings", "unknown key 'devcie-cgroup', did you mean 'device-cgroup'?",
            "vi +2 /etc/oci-gpu-hook.conf"),
    "mkdir /etc/oci-gpu-hook.conf":
        Planted("fail", "settings", "cannot read /etc/oci-gpu-hook.conf: Is a directory",
            "mv /etc/oci-gpu-hook.conf /etc/oci-gpu-hook.conf.broken", True),
    ": >/etc/oci-gpu-hook.conf; chmod 0666 /etc/oci-gpu-hook.conf":
        Planted("fail", "settings", "others than root may write /etc/oci-gpu-hook.conf",
            "chown root: /etc/oci-gpu-hook.conf && chmod go-w /etc/oci-gpu-hook.conf", True),
    "echo 'runtime = /nope' >/etc/oci-gpu-hook.conf":
        Planted("fail", "settings", "runtime names no program for oci-gpu-runtime to become",
            "vi +1 /etc/oci-gpu-hook.conf"),
    "mkdir /etc/oci-gpu-hook.conf.d; echo 'docker-count = any' >/etc/oci-gpu-hook.conf.d/9.conf":
        Planted("fail", "settings", "docker-count is any, and gpu-holders is not set",
            "vi +1 /etc/oci-gpu-hook.conf.d/9.conf"),
    "mkdir /etc/oci-gpu-hook.conf.d; echo 'records = no' >/etc/oci-gpu-hook.conf.d/9.conf":
        Planted("pass", "settings", "/etc/oci-gpu-hook.conf.d/9.conf"),
    "echo >/run/oci-gpu-hook/leases":
        Planted("fail", "leases", "/run/oci-gpu-hook/leases is damaged", "rm /run/oci-gpu-hook/leases", True),
    "rm /usr/libexec/oci/hooks.d/oci-gpu-hook":
        Planted("fail", "installation", "/usr/libexec/oci/hooks.d/oci-gpu-hook is not there", REINSTALL),
    "rm /usr/libexec/oci-gpu-hook-start":
        Planted("fail", "installation", "/usr/libexec/oci-gpu-hook-start is not there", REINSTALL),
    "printf '#!/bin/sh\\n' >/usr/libexec/oci/hooks.d/oci-gpu-hook":
        Planted("fail", "installation", "is another's file in our place",
            "mv /usr/libexec/oci/hooks.d/oci-gpu-hook /usr/libexec/oci/hooks.d/oci-gpu-hook.other"),
    "sed -i 's|exec /usr/bin/python3 |exec /usr/bin/python3.99 |' /usr/libexec/oci/hooks.d/oci-gpu-hook":
        Planted("fail", "Python", "/usr/bin/python3.99 is not there", "apt install python3"),
    "cd /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__; for f in *; do mv $f ${f%.*}.cpython-39; done":
        Planted("warn", "installation", "/usr/lib/oci-gpu-hook was not made for /usr/bin/python3.", REINSTALL),
    "chmod 0666 $HOOKS/oci-gpu-hook.json":
        Planted("fail", "installation",
            "others than root may write /usr/share/containers/oci/hooks.d/oci-gpu-hook.json",
            "chmod go-w /usr/share/containers/oci/hooks.d/oci-gpu-hook.json", True),
    "chmod 0777 $HOOKS":
        Planted("fail", "installation", "others than root may write /usr/share/containers/oci/hooks.d,",
            "chmod go-w /usr/share/containers/oci/hooks.d", True),
    "chmod 0666 /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/modules.*":
        Planted("fail", "installation",
            "others than root may write /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/modules.",
            "chmod go-w /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/modules.", True),
    "echo 'driver-root = /run/nvidia/driver' >/etc/oci-gpu-hook.conf":
        Planted("fail", "driver", "the driver root /run/nvidia/driver is not there",
            "oci-gpu-hook info --settings  # driver-root"),
    "echo 'driver-root = /etc/passwd' >/etc/oci-gpu-hook.conf":
        Planted("fail", "driver", "the driver root /etc/passwd is not a folder",
            "oci-gpu-hook info --settings  # driver-root"),
    "chmod 0777 /run/oci-gpu-hook":
        Planted("warn", "inventory", "others than root may write /run/oci-gpu-hook: nothing in it is trusted",
            "chmod go-w /run/oci-gpu-hook && oci-gpu-hook inventory refresh", True),
    "rm -r /run/oci-gpu-hook; : >/run/oci-gpu-hook":
        Planted("warn", "inventory", "/run/oci-gpu-hook is not a folder: nothing can be saved",
            "rm /run/oci-gpu-hook && oci-gpu-hook inventory refresh", True),
    # The node has InfiniBand, and so our file of it has something to say.
    "mkdir -p $VENDORS; printf '{\\n\"activation_flag\": 1}' >$VENDORS/x.json":
        Planted("fail", "vendors", "/etc/oci-gpu-hook/vendors/x.json: ",
            "oci-gpu-hook info --vendor /etc/oci-gpu-hook/vendors/x.json"),
    "mkdir -p $VENDORS; cp /usr/share/oci-gpu-hook/vendors/rdma.json $VENDORS/; chmod 0666 $VENDORS/rdma.json":
        Planted("fail", "vendors", "rdma.json: others than root may write to it",
            "chmod go-w /etc/oci-gpu-hook/vendors/rdma.json", False),
    """mkdir -p $VENDORS; sed '1a "requires": {"modules": ["gone"]},' /usr/share/oci-gpu-hook/vendors/rdma.json """
    ">$VENDORS/rdma.json":
        Planted("fail", "OCI_RDMA", "the kernel's module gone is not loaded", "modprobe gone"),
    "rm /run/oci-gpu-hook/vendor.OCI_RDMA":
        Planted("warn", "OCI_RDMA", "no inventory is saved", "oci-gpu-hook inventory refresh", True),
    ": >$LIBCUDA":
        Planted("fail", "libraries", "libcuda of version 580.65.06 is cut off or no library",
            "apt install --reinstall "),
    # A container of a user's runs, which has no further ids.
    "mkdir $USERS; setpriv --reuid=1000 --regid=1000 --clear-groups unshare --user sleep 99 >/dev/null 2>&1 &\n"
    "echo $! >$USERS/cgroup.procs; : >/etc/subuid; (umask 077; echo 'records = yes' >/etc/oci-gpu-hook.conf)\n"
    "until [ $(readlink /proc/$!/ns/user) != $(readlink /proc/self/ns/user) ]; do sleep 0.1; done":
        Planted("warn", "rootless", "users cannot read /etc/oci-gpu-hook.conf",
            "chmod a+r /etc/oci-gpu-hook.conf", True),
    PODMAN.format(version="4.5.1"):
        Planted("warn", "images in podman", "podman 4.5.1 hands an image's annotations on to crun",
            "vi /etc/containers/containers.conf"),
    ALONE:
        Planted("warn", "containerd", "no runtime of containerd's is oci-gpu-runtime", CONFIGURE),
    "install -m 0755 /bin/true /usr/bin/kubelet":
        Planted("warn", "containerd", "no runtime of containerd's is oci-gpu-runtime", CONFIGURE),
    f"{ALONE}runs runc /usr/bin/nothing":
        Planted("fail", "containerd",
            f"{FILE} has /usr/bin/nothing as the runtime runc, the default, and it is not there", f"vi {FILE}"),
    f"{ALONE}runs gpu /opt/oci-gpu-runtime":
        Planted("fail", "containerd", f"{FILE} has /opt/oci-gpu-runtime as the runtime gpu, and it is not there",
            REINSTALL),
    "install -m 0755 /bin/true /usr/bin/nvidia-container-runtime; runs runc /usr/bin/nvidia-container-runtime":
        Planted("warn", "other hooks", f"{FILE} has NVIDIA's runtime as runc, the default",
            f"sed -i '/^ *default_runtime_name *=/d' {FILE}"),
    f"{ALONE}without containerd":
        Planted("warn", "engines", "none of podman, CRI-O, Docker, containerd is installed", "apt install podman"),
    f"{ALONE}runs runc /usr/bin/oci-gpu-runtime":
        Planted("pass", "containerd", f"{FILE} has /usr/bin/oci-gpu-runtime as the runtime runc, the default"),
    f"{ALONE}mkdir -p /opt/nri/plugins; : >/opt/nri/plugins/10-hook-injector":
        Planted("pass", "containerd", "/opt/nri/plugins/10-hook-injector reads hooks.d, for pods, while it runs"),
    "without podman":
        Planted("pass", "Docker", "/usr/bin/nvidia-container-runtime-hook leads to our hook, for 'docker run --gpus'"),
    # What `docker info` must show where an editor looks for NVIDIA's.
    f"{LINKED}printf '{RUNTIMES}' /usr/bin/nvidia-container-runtime >$JSON":
        Planted("pass", "Docker", "daemon.json has /usr/bin/nvidia-container-runtime as the runtime gpu, the default"),
    f"{LINKED}runs runc /usr/bin/nvidia-container-runtime":
        Planted("pass", "containerd", f"{FILE} has /usr/bin/nvidia-container-runtime as the runtime runc, the default"),
    # These stay.
    "rm /usr/lib/*/libnvidia-encode.so.*.*":
        Planted("fail", "inventory", "libnvidia-encode.so.580.65.06, which each start would give, is not there",
            "oci-gpu-hook inventory refresh", True),
    "touch /etc/ld.so.cache":
        Planted("warn", "inventory", "what is saved is no longer true", "oci-gpu-hook inventory refresh", True),
    "echo 5.4.0-42-generic >/run/release; mount --bind /run/release /proc/sys/kernel/osrelease":
        Planted("fail", "kernel", "5.4.0-42-generic, and the hook needs 5.14 or newer",
            "apt full-upgrade && systemctl reboot"),
    "mount -t tmpfs none /sys/fs/cgroup":
        Planted("fail", "cgroups", "is neither v2 nor has it the devices controller",
            "mount -t cgroup2 none /sys/fs/cgroup"),
    "rm /usr/lib*/*/libcuda.so.*; ldconfig; mkdir -p /run/nvidia/driver/usr":
        Planted("fail", "libraries", "is missing: compute is not served",
            "vi /etc/oci-gpu-hook.conf  # driver-root = /run/nvidia/driver"),
}
# fmt: on


def parsed(said: str) -> tuple[int, dict[str, Any]]:
    """The exit code that stands behind doctor's document where it is not 0, and the document."""
    document, end = json.JSONDecoder().raw_decode(said)
    return int(said[end:].strip() or 0), document


def judge(planted: Planted, said: str) -> None:
    code, document = parsed(said)
    found = [item for item in document["findings"] if item["level"] in (planted.level, "warn", "fail")]
    assert planted.level != "pass" or {item["level"] for item in found} == {"pass"}, found
    its = [item for item in found if (item["level"], item["check"]) == (planted.level, planted.check)]
    assert any(planted.seen in item["seen"] and planted.remedy in item["remedy"] for item in its), found
    failed = len([item for item in found if item["level"] == "fail"])
    assert (document["failed"], code) == (failed, 1 if failed else 0)


def passes(said: str) -> None:
    document = json.loads(said)
    assert [item for item in document["findings"] if item["level"] != "pass"] == []
    assert (document["failed"], document["warned"]) == (0, 0)
    checks = {item["check"] for item in document["findings"]}
    assert {"hook in podman", "eBPF", "nodes", "rootless"} <= checks


@pytest.mark.parametrize("faults", BROKEN)
def test_a_broken_node_is_named_with_its_remedy(faults: str) -> None:
    done = on_node(f"{SET_UP}{DOCTOR}", faults=tuple(faults.split()))
    assert "Traceback" not in done.err, done.err
    judge(BROKEN[faults], done.out.strip())


def test_a_planted_fault_is_named_with_its_remedy_which_mends_it() -> None:
    newer = PODMAN.format(version="4.6.0")
    scripts = {"nothing": DOCTOR, "newer podman": f"restore\n(\n{newer}\n) >&2\n{DOCTOR}"}
    for number, (script, planted) in enumerate(PLANTED.items()):
        then = f"{FIX}{DOCTOR}" if planted.fixed else ""
        scripts[str(number)] = f"restore\n(\n{script}\n) >&2\n{DOCTOR}{then}"
    found = in_turn(scripts, SET_UP + RESTORE)
    for name in ("nothing", "newer podman"):
        passes(found.pop(name)[0])
    for (said, *fixed), (script, planted) in zip(found.values(), PLANTED.items()):
        print(f"planted: {script}")
        judge(planted, said)
        assert len(fixed) == planted.fixed
        for text in fixed:
            passes(text)


@pytest.mark.parametrize(("description", "cgroup"), [("v100", "v1"), ("h100mig", "v2")])
def test_all_passes_on_a_whole_node(description: str, cgroup: str) -> None:
    done = on_node(SET_UP + CRIO + DOCTOR, description=description, cgroup=cgroup)
    passes(done.out)
    assert '"hook in CRI-O"' in done.out


GENERATE = "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml"
OLD = "/etc/cdi/gpu.yaml: it does not say what the host has now"
STALE = Planted("fail", "CDI", OLD, f"oci-gpu-hook inventory refresh && {GENERATE}")


def test_a_stale_mig_name_in_a_spec_is_named_with_its_remedy_which_fixes_it() -> None:
    """Of an instance that is gone, and of one that was made again."""
    script = f"""{SET_UP}{GENERATE} >&2
rm -r {CAPABILITIES}/gpu1/mig/gi13; oci-gpu-hook inventory refresh >&2
{DOCTOR}{FIX}{DOCTOR}
({MADE_ANEW}oci-gpu-hook inventory refresh) >&2
{DOCTOR}{FIX}{DOCTOR}"""
    destroyed, fixed, made_again, fixed_again = in_turn({"mig": script}, description="h100mig")["mig"]
    for said in (destroyed, made_again):
        judge(STALE, said)
    for said in (fixed, fixed_again):
        passes(said)
