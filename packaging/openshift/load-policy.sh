#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Loads the policy module nvidia_container, if the node does not have this very one, and gives the features' folder its
# label; oci-gpu-hook-policy.service runs it.  At a boot that takes a second, and to load the module half a minute.
set -eu

module=nvidia_container
ours=/usr/local/libexec/oci-gpu-hook/$module.cil
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
if [ -x /usr/local/bin/oci-gpu-hook ]; then
    /usr/local/bin/oci-gpu-hook selinux relabel
else
    restorecon -i /etc/kubernetes/node-feature-discovery/features.d
fi
