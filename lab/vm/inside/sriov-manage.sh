#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sriov-manage.sh -e|-d ADDRESS: gives a card all virtual functions that it can have, or takes them away,
# by the steps of the program that comes with NVIDIA's vGPU software: the card's unbindLock, asked for
# once; pci-pf-stub in the place of the driver, which keeps no GPU instances then; the functions to the
# driver. The card's driver is called nvidia, here and there.
devices=/sys/bus/pci/devices
drivers=/sys/bus/pci/drivers

bind() { # FUNCTION DRIVER
    [ ! -e "$devices/$1/driver" ] || echo "$1" >"$devices/$1/driver/unbind" || return 1
    echo "$2" >"$devices/$1/driver_override"
    echo "$1" >"$drivers/$2/bind"
}

set_number() { # CARD NUMBER
    lock=/proc/driver/nvidia/gpus/$1/unbindLock
    echo 1 >"$lock"
    read -r locked <"$lock"
    if [ "$locked" != 1 ]; then
        echo "Cannot obtain unbindLock for $1" >&2
        return 1
    fi
    bind "$1" pci-pf-stub
    # Of what QEMU emulates the kernel's own driver would take the functions, which knows no GPU's.
    echo 0 >"$devices/$1/sriov_drivers_autoprobe"
    echo "$2" >"$devices/$1/sriov_numvfs"
    bind "$1" nvidia
}

modprobe pci-pf-stub || exit 1
card=$2
read -r vendor <"$devices/$card/vendor" || exit 1
[ "$vendor" = 0x10de ] || exit 1
[ -e "$devices/$card/sriov_numvfs" ] || exit 0
read -r number <"$devices/$card/sriov_numvfs"
read -r most <"$devices/$card/sriov_totalvfs"
case $1 in
    -e)
        if [ "$number" != 0 ]; then
            echo "GPU at $card already has VFs enabled."
            exit 0
        fi
        echo "Enabling VFs on $card"
        set_number "$card" "$most" || exit 1
        for link in "$devices/$card"/virtfn*; do
            function=$(readlink "$link")
            bind "${function##*/}" nvidia
        done
        ;;
    -d)
        if [ "$number" = 0 ]; then
            echo "GPU at $card already has VFs disabled."
            exit 0
        fi
        echo "Disabling VFs on $card"
        for link in "$devices/$card"/virtfn*; do
            function=$(readlink "$link")
            function=${function##*/}
            [ ! -e "$devices/$function/driver" ] || echo "$function" >"$devices/$function/driver/unbind"
        done
        set_number "$card" 0
        ;;
    *) exit 1 ;;
esac
