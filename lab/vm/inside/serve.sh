#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The VM's only command where a cloud's compute host runs in it: runs what lab/cloud/vm_host.py leaves in a
# folder below /out/commands, each beside the others, for as long as the VM is on.
modprobe -a tun
export PATH=/opt/nova/bin:$PATH
mkdir -p /etc/nova /var/lib/nova/instances
touch /out/up
while :; do
    for command in /out/commands/*/command; do
        folder=${command%/command}
        [ -e "$command" ] && [ ! -e "$folder/began" ] || continue
        touch "$folder/began"
        (
            cd / && sh "$command" >"$folder/output" 2>&1 </dev/null
            echo $? >"$folder/ended" && mv "$folder/ended" "$folder/status"
        ) &
    done
    sleep 0.3
done
