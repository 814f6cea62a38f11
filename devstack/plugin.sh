#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# devstack sources this with a mode and, for stack, a phase. Both kinds of host load it: what a host
# does not run is not configured there.

function install_nova_gpu {
    setup_develop "$NOVA_GPU_DIR" nova
}

function configure_nova_gpu {
    if is_service_enabled n-cpu; then
        # nova-cpu.conf is copied from this file when nova-compute starts.
        iniset "$NOVA_CONF" DEFAULT compute_driver gpu.GPULibvirtDriver
        if [[ "$LIBVIRT_TYPE" == lxc ]]; then
            local ids="0:$NOVA_GPU_FIRST_ID:$NOVA_GPU_ID_COUNT"
            iniset "$NOVA_CONF" libvirt uid_maps "$ids"
            iniset "$NOVA_CONF" libvirt gid_maps "$ids"
            iniset "$NOVA_CONF" libvirt images_type raw
            iniset "$NOVA_CONF" libvirt snapshot_image_format raw
        else
            iniset "$NOVA_CONF" libvirt hw_machine_type x86_64=q35
        fi
    fi
    if is_service_enabled n-sch; then
        iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
            nova.scheduler.filters.all_filters nova_gpu.scheduler.filters.GPUFilter
        iniset "$NOVA_CONF" filter_scheduler enabled_filters "$NOVA_FILTERS,GPUFilter"
        iniset "$NOVA_CONF" filter_scheduler weight_classes \
            nova.scheduler.weights.all_weighers,nova_gpu.scheduler.weights.GPUWeigher
    fi
}

function create_nova_gpu_flavor {
    if is_service_enabled n-api; then
        openstack --os-cloud devstack-admin flavor create cg1.xlarge \
            --vcpus 2 --ram 512 --disk 1 \
            --property gpus='= 2' --property gpu_arch='s== fermi' \
            --property hypervisor="s== ${LIBVIRT_TYPE^^}"
    fi
}

function delete_nova_gpu_flavor {
    openstack --os-cloud devstack-admin flavor delete cg1.xlarge || true
}

if is_service_enabled n-cpu n-sch n-api; then
    case "$1 ${2:-}" in
        "stack install")     install_nova_gpu ;;
        "stack post-config") configure_nova_gpu ;;
        "stack extra")       create_nova_gpu_flavor ;;
        "unstack ")          delete_nova_gpu_flavor ;;
        # stack pre-install, stack test-config and clean have nothing to do.
    esac
fi
