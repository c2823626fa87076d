#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A hub and its users, who log in and spawn their servers as browsers do, by the hub's REST API; the servers stay.
#
#   hub.sh USER...
#
# The hub is started with hub_config.py, which takes what it is to be from the environment; its log is said if it fails.
set -eu
api=http://127.0.0.1:8000/hub/api
config=$(realpath "$(dirname "$0")/hub_config.py")
cd /run/hub
jupyterhub --config "$config" >log 2>&1 &
hub=$! token=
ask() { curl --silent --fail --header "Authorization: token $token" "$@"; }
# A loaded machine takes long.
wait_for() { # TEXT ADDRESS
    for _ in $(seq 6000); do
        if ask "$2" 2>/dev/null | grep -q "$1"; then return; fi
        kill -0 $hub || break
        sleep 0.1
    done
    cat log >&2
    return 1
}
wait_for version "$api/"
for user; do
    token=
    who='{"auth": {"username": "'$user'", "password": "any"}}'
    ask --data "$who" "$api/users/$user/tokens" | sed 's/.*"token": *"\([^"]*\)".*/\1/' >"$user.token"
    token=$(cat "$user.token")
    ask --data '{}' "$api/users/$user/server" >&2
done
# The hub calls a server ready that answers through the proxy.
for user; do
    token=$(cat "$user.token")
    wait_for '"ready": true' "$api/users/$user"
done
kill $hub
wait $hub || :
