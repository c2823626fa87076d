#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Loads the policy module nvidia_container, if the node does not have this very one; oci-gpu-hook-policy.service runs it.
# At a boot the check takes a second, and to load the module takes half a minute.
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
    exit 0
fi
semodule -X $priority -i "$ours"
# What was there before the module has its old label.
restorecon -R -i /etc/kubernetes/node-feature-discovery/features.d
echo "loaded $module"
