#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# resume.sh TIME NAME [ADDRESS MAC]: what a VM that was saved has to learn when it goes on.
date --set="@$1" >/dev/null
hostname "$2"
if [ -n "$3" ]; then
    ip link set eth1 address "$4"
    ip address add "$3/24" dev eth1
    ip link set eth1 up
    # libvirtd moves no guest to a host of the same id, and the other VM was saved with this one's.
    pid=$(cat /run/libvirtd.pid)
    kill "$pid"
    while [ -d "/proc/$pid" ]; do sleep 0.1; done
    libvirtd --daemon --listen
fi
sh /run/lab/folders.sh
# The cards that cannot be saved were taken away before.
echo 1 >/sys/bus/pci/rescan
udevadm settle --timeout=600
