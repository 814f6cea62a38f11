#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# QEMU in the VM's newer system. What a pretend vGPU has written to the guest's memory nothing tells:
# not the device, for which its kernel would have to have iommufd, nor the IOMMU. Such a device QEMU
# (8.1 and later) moves in a live migration only where it is told to, and libvirt has no word for it.
exec /usr/bin/qemu-system-x86_64.real "$@" -global vfio-pci.enable-migration=on
