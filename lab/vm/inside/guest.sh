#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
# A guest's only program: says on its console which PCI functions it sees, where each is in its tree,
# on which NUMA node, and of memory above 4 GiB from where to where, then stays. On a serial
# line that gives back what is written to it, as the one of a pretend vGPU, it counts; and in the byte
# that a virtual function of fakefunctions.c remembers.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for device in /sys/bus/pci/devices/*; do
    read -r vendor <"$device/vendor"
    read -r product <"$device/device"
    read -r class <"$device/class"
    echo "guest: function ${device##*/} ${vendor#0x}:${product#0x} ${class#0x}"
    read -r node <"$device/numa_node"
    cd -P "$device" && echo "guest: place ${PWD#/sys/devices/} $node"
    while read -r begin end _; do
        case $begin in
        0x00000000*) ;;
        *) echo "guest: memory ${device##*/} $begin $end" ;;
        esac
    done <resource
done
echo "guest: ready"
# As Linux 6.5 and later have it: DEVICE/DEVICE:0/DEVICE:0.0/tty.
for line in /sys/bus/pci/devices/*/*:*/*:*/tty/tty*; do
    [ -e "$line" ] || continue
    mount -t devtmpfs dev /dev
    exec 3<>"/dev/${line##*/}"
    stty raw -echo <&3
    echo 1 >&3
    while read -r count <&3; do
        echo "guest: counted $count"
        sleep 1
        echo $((count + 1)) >&3
    done
done
for config in /sys/bus/pci/devices/*/config; do
    read -r vendor <"${config%/*}/vendor"
    read -r class <"${config%/*}/class"
    [ "$vendor $class" = "0x1b36 0x010802" ] || continue
    while :; do
        count=$(hexdump -s 240 -n 1 -e '1/1 "%u"' "$config")
        [ "$count" = 0 ] || echo "guest: counted $count"
        printf "\\$(printf %o $((count + 1)))" | dd of="$config" bs=1 seek=240 conv=notrunc 2>/dev/null
        sleep 1
    done
done
while :; do sleep 600; done
