#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The VM's init, after the mounts: udev and libvirtd, then /out/command, then off. What the kernel
# command line says as labvm=bare leaves out udev and libvirtd; with labvm=confined AppArmor confines
# libvirtd and guests by Debian's profiles; with labvm.prepared=MODULE prepare.py is what runs: it
# imports that and waits for the VM to be saved and resumed. Only a boot with the line EXIT is valid.
umount /lab
# No systemd-udevd makes these where devtmpfs was mounted by hand.
ln -sf /proc/self/fd /dev/fd
for pair in 0:stdin 1:stdout 2:stderr; do ln -sf "/proc/self/fd/${pair%:*}" "/dev/${pair#*:}"; done
said() { sed -n "s/.*labvm\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
name=$(said name)
hostname "${name:-labvm}"
ip link set lo up
# Up before udev sees it, it keeps its name.
modprobe virtio_net
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
address=$(said address)
if [ -n "$address" ]; then
    ip address add "$address/24" dev eth1
    ip link set eth1 up
fi
sh /run/lab/folders.sh
modprobe -a fuse loop kvm_amd vfio-pci vfio_iommu_type1

if ! grep -q labvm=bare /proc/cmdline; then
    cp -r /run/lab/etc/. /etc/
    /lib/systemd/systemd-udevd --daemon
    # Of the devices that are there, those whose drivers are modules.
    udevadm trigger --type=devices --action=add --subsystem-match=pci
    # The display driver of the pretend cards knows them by another id.
    modprobe bochs
    for id in $(said id); do
        echo "${id%:*} ${id#*:}" >/sys/bus/pci/drivers/bochs-drm/new_id
    done
    udevadm settle --timeout=600
    # The host's console is the serial one: none of the cards is in use for it.
    for console in /sys/class/vtconsole/vtcon*; do
        grep -q "frame buffer" "$console/name" && echo 0 >"$console/bind"
    done
    if grep -q labvm=confined /proc/cmdline; then
        mount -t securityfs security /sys/kernel/security
        sed -i 's/^security_driver.*/security_driver = "apparmor"/' /etc/libvirt/qemu.conf
        # Of qemu.sh, and of folders where Debian's nova-compute has none
        mkdir -p /etc/apparmor.d/local/abstractions
        printf '%s\n' '/usr/bin/qemu-system-x86_64.real rmix,' '/run/lab/qemu-options r,' \
            >>/etc/apparmor.d/local/abstractions/libvirt-qemu
        echo '/var/tmp/nova/instances/_base/* r,' >>/etc/apparmor.d/local/usr.lib.libvirt.virt-aa-helper
        apparmor_parser --replace /etc/apparmor.d/usr.*
    fi
    virtlogd --daemon
    libvirtd --daemon --listen
    for _ in $(seq 1200); do
        [ -S /run/libvirt/libvirt-sock ] && break
        sleep 0.25
    done
fi
echo "labvm: up $(cut -d' ' -f1 /proc/uptime)" >/dev/console
prepared=$(said prepared)
if [ -n "$prepared" ]; then
    # libvirtd asks QEMU what it can once, for seconds.
    virsh --connect qemu:///system capabilities >/dev/null
    PATH=/opt/nova/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/project \
        python -W ignore /run/lab/prepare.py "$prepared" "$(said away)" </dev/null 2>/dev/console
else
    cd /project && sh /out/command >>/out/output 2>&1 </dev/null
fi
status=$?
dmesg >/out/dmesg
cp /var/log/libvirt/qemu/*.log /out/ 2>/dev/null
sync
echo "labvm: EXIT $status" >/dev/console
sleep 0.2
poweroff -f
