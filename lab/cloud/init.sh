#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Process 1 of a guest. libvirt asks a container to stop or to reboot by writing a request to
# /run/initctl (sysvinit's struct init_request: 4 bytes magic, 4 bytes command, 4 bytes runlevel,
# '0' to halt and '6' to reboot); a process 1 that ends tells libvirt that the guest is down.
trap 'echo "guest: going down"; exit 0' TERM INT
rm -f /run/initctl
mkfifo -m 600 /run/initctl
(
    level=$(dd if=/run/initctl bs=384 count=1 2>/dev/null | dd bs=1 skip=8 count=1 2>/dev/null)
    [ "$level" = 6 ] && exec reboot -f
    kill -TERM 1
) &
echo "guest: up, $(hostname), $(uname -r)"
while :; do
    sleep 1000000 &
    wait $!
done
