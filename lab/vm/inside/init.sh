#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The VM's init: mounts, then up.sh, from a copy: where the VM is saved, no folder of this machine may
# be mounted.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs -o mode=1777 tmp "$folder"; done
mkdir -p /run/lock /run/lab /project /out
mount -t cgroup2 cgroup /sys/fs/cgroup
cp -r /lab/. /run/lab/
exec sh /run/lab/up.sh
