#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The VM's first process: the modules its disk needs, then the init of that.
box=/bin/busybox
$box mkdir -p /proc /dev /root
$box mount -t proc proc /proc
$box mount -t devtmpfs dev /dev
for module in $($box cat /modules); do
    $box insmod "/lib/$module" || echo "labvm: insmod $module failed"
done
for _ in $($box seq 600); do
    [ -b /dev/vdb ] && break
    $box sleep 0.2
done
$box mount -t ext4 -o noatime /dev/vda /root || exec $box poweroff -f
$box mount -t ext4 -o noatime,ro /dev/vdb /root/opt/nova || exec $box poweroff -f
$box mkdir -p /root/lab
$box mount -t 9p -o trans=virtio,version=9p2000.L,ro lab /root/lab
$box mount --move /dev /root/dev
$box umount /proc
exec $box switch_root /root /bin/sh /lab/init.sh
