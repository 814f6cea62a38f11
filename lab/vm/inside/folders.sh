#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Mounts the folders of the machine that the VM runs on.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro project /project
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /out
