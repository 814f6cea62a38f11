#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# A guest's only program: says on its console which PCI functions it sees, then stays.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys
mount -t proc proc /proc
mount -t sysfs sys /sys
for device in /sys/bus/pci/devices/*; do
    read -r vendor <"$device/vendor"
    read -r product <"$device/device"
    read -r class <"$device/class"
    echo "guest: function ${device##*/} ${vendor#0x}:${product#0x} ${class#0x}"
done
echo "guest: ready"
while :; do sleep 600; done
