#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Loads the policy module nvidia_container, if the node does not have this very one, and gives the features' folder its
# label; oci-gpu-hook-policy.service runs it.  At a boot that takes a second, and to load the module half a minute.
set -eu

module=nvidia_container
ours=/usr/local/lib/oci-gpu-hook/policy/$module.cil
# An administrator's own modules have 400, and so win.
priority=200

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if semodule -X $priority --cil -E $module >/dev/null 2>&1 && cmp -s $module.cil "$ours"; then
    echo "$module is loaded already"
else
    semodule -X $priority -i "$ours"
    echo "loaded $module"
fi

# What was there before the module has its old label.  Agents may write there, and could exchange a name that restorecon
# walks by: what lies in the folder is labelled by descriptor.
folder=/etc/kubernetes/node-feature-discovery/features.d
library=/usr/local/lib/oci-gpu-hook
if [ -d $library ]; then
    /usr/bin/python3 -ISB -c '
import sys
sys.path.insert(0, sys.argv[1])
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import filecontext
for line in filecontext.restore(HostRoot(), sys.argv[2]):
    print(line)' $library $folder
else
    restorecon -i $folder
fi
