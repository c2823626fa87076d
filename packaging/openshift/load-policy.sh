#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Loads the policy module nvidia_container, if the node does not have this very one; oci-gpu-hook-policy.service runs it.
# Asking costs a boot a second, loading half a minute.
set -eu

module=nvidia_container
ours=/usr/local/lib/oci-gpu-hook/policy/$module.cil
# Below 400, where an administrator's own modules go and win.
priority=200

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if semodule -X $priority --cil -E $module >/dev/null 2>&1 && cmp -s $module.cil "$ours"; then
    echo "$module is loaded already"
    exit 0
fi
semodule -X $priority -i "$ours"
echo "loaded $module"
