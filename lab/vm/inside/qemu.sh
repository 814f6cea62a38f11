#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# QEMU in the VM, told what libvirt has no word for: the words in /run/lab/qemu-options.
options=$(cat /run/lab/qemu-options 2>/dev/null)
# shellcheck disable=SC2086  # they are several
exec /usr/bin/qemu-system-x86_64.real "$@" $options
