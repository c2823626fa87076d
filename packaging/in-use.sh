#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether engines or containers need oci-gpu-runtime, or engines the hook by a CDI spec: says which, and what to do, and ends
# with 1.
#
#   in-use.sh RUNTIME
#
# A removal asks it first: an engine that names a runtime which is not there starts no container, and of containers that run
# by one none can be entered or stopped.  Only what is root's is looked at, and of MicroK8s what its group's is, which can be
# root.  What it lacks to look with counts as not there.
set -u

runtime=$1
found=0

say() {
    printf '%s\n' "oci-gpu-hook: $*" >&2
    found=1
}

# As an expression of grep -E that matches it alone: a prefix may hold dots and plus signs.
literally() { printf '%s\n' "$1" | sed 's/[][\\.*^$+?(){}|]/\\&/g'; }

# By its own path and name, and by the link that tools know.
paths=$(literally "$runtime") bare=${runtime##*/}
for link in "${runtime%/*}/nvidia-container-runtime" /usr/local/bin/nvidia-container-runtime; do
    [ "$(readlink -f "$link")" != "$(readlink -f "$runtime")" ] || paths="$paths|$(literally "$link")" bare="$bare|${link##*/}"
done

# Whether the file names the runtime, but in a comment: by a path, or as what is found in PATH.
by_path="(^|[\"'=[:space:]])($paths)([\"'[:space:]]|\$)"
by_name="(\"path\"|\"binary_name\"|BinaryName|runtime_path)[[:space:]]*[:=][[:space:]]*[\"']($bare)[\"']"
# Slurm's has the runtime's words behind it.
by_name="$by_name|RunTime[A-Za-z]*[[:space:]]*=[[:space:]]*[\"']?($bare)[[:space:]]"
names() {
    grep -v '^[[:space:]]*[#;]' "$1" 2>/dev/null | tr '\n' ' ' | grep -qE "$by_path|$by_name"
}

# ENGINE COMMAND FILE...: where an engine that is there has its settings, and what makes it read them again.
engine() {
    name=$1 again=$2
    shift 2
    for file; do
        [ ! -f "$file" ] || ! names "$file" || say "$file names $runtime: without it $name starts no" \
            "container that has this runtime (name runc there in its place, and run '$again')"
    done
}

! command -v dockerd >/dev/null || engine Docker 'systemctl reload docker' /etc/docker/daemon.json
! command -v dockerd >/dev/null || engine Docker 'systemctl daemon-reload && systemctl restart docker' \
    /etc/default/docker /etc/sysconfig/docker /etc/systemd/system/docker.service /etc/systemd/system/docker.service.d/*.conf
! command -v containerd >/dev/null || engine containerd 'systemctl restart containerd' \
    /etc/containerd/config.toml /etc/containerd/conf.d/*.toml
! command -v crio >/dev/null || engine CRI-O 'systemctl restart crio' /etc/crio/crio.conf /etc/crio/crio.conf.d/*
# Their config.toml imports the folder.
engine k3s 'systemctl restart k3s' /var/lib/rancher/k3s/agent/etc/containerd/config*.toml* \
    /var/lib/rancher/k3s/agent/etc/containerd/config*.toml.d/*.toml
engine RKE2 'systemctl restart rke2-server rke2-agent' /var/lib/rancher/rke2/agent/etc/containerd/config*.toml* \
    /var/lib/rancher/rke2/agent/etc/containerd/config*.toml.d/*.toml
engine k0s 'systemctl restart k0scontroller k0sworker' /etc/k0s/containerd.toml /etc/k0s/containerd.d/*.toml
engine MicroK8s 'snap restart microk8s' /var/snap/microk8s/current/args/containerd-template.toml
! command -v slurmd >/dev/null || engine Slurm 'systemctl restart slurmd' /etc/slurm/oci.conf
# The folders of root's containers and of users' are podman 6's.
for file in /etc/containers/containers.conf /etc/containers/containers.conf.d/*.conf \
    /etc/containers/containers.rootful.conf.d/*.conf /etc/containers/containers.rootless.conf.d/*.conf \
    /etc/containers/containers.rootless.conf.d/*/*.conf; do
    [ ! -f "$file" ] || ! names "$file" || say "$file names $runtime: without it podman starts no container that has this" \
        "runtime (name crun or runc there, or oci-gpu-hook configure podman --remove)"
done

# /run/cdi/oci-gpu-hook.yaml is the service's, and goes with it.
for file in /etc/cdi/*.json /etc/cdi/*.yaml /run/cdi/*.json /run/cdi/*.yaml; do
    # shellcheck disable=SC3013
    if [ ! "$file" -ef /run/cdi/oci-gpu-hook.yaml ] && grep -qs '"oci-gpu-hook"' "$file"; then
        say "$file starts the hook: without it no container by its CDI devices starts (oci-gpu-hook cdi remove $file)"
    fi
done

# containerd's shim, Docker's too, keeps the runtime of each container beside its bundle.
running=''
for folder in /run/containerd /run/docker/containerd/daemon /run/k3s/containerd /run/k0s/containerd \
    /var/snap/microk8s/common/run/containerd; do
    for bundle in "$folder"/io.containerd.runtime.v2.task/*/*; do
        if [ -d "$bundle" ] && grep -qsE "$by_path|$by_name|^($bare)\$" "$bundle/runtime" "$bundle/options.json"; then
            running="$running $(printf %.12s "${bundle##*/}")"
        fi
    done
done
# CRI-O and podman keep it with the container, whose monitor has its path.  A container's own process may have any name and
# words, but not our root.
for process in /proc/[0-9]*; do
    name=''
    { [ ! -O "$process" ] || read -r name <"$process/comm"; } 2>/dev/null || continue
    [ "$name" = conmon ] || continue
    # shellcheck disable=SC3013
    [ ! -e "$process/root/" ] || [ "$process/root/" -ef / ] || continue
    words=$({ tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null)
    id=${words#* -c }
    id=${id%% *}
    case $id in '' | *[!0-9a-f]*) continue ;; esac
    if printf '%s\n' "$words" | grep -qE -- " -r ($paths) "; then
        running="$running $(printf %.12s "$id")"
    fi
done
[ -z "$running" ] || say "containers run by $runtime, and without it they cannot be entered or stopped:$running" \
    "(stop them, or start them again once their engine names runc)"
exit $found
