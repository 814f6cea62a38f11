# SPDX-License-Identifier: Apache-2.0
"""Nova's methods that we override or count on, parameter by parameter, for every release.

None of them is an interface that Nova promises. Where this fails with a new Nova, read what changed
there before the table is changed here.
"""

from __future__ import annotations

import inspect
import unittest
from typing import Any

from nova.compute import claims, provider_tree, resource_tracker
from nova.virt import hardware
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest

from nova_gpu.virt import driver
from tests.functional import NOVA

DRIVER_34 = {
    "__init__": "self, virtapi, read_only=False",
    "_create_domain_cleanup_lxc": "self, instance",
    "_create_guest": (
        "self, context, xml, instance, power_on=True, pause=False, post_xml_callback=None"
    ),
    "_create_idmaps": "klass, map_strings",
    "_destroy": "self, instance",
    "_get_guest_config": (
        "self, instance, network_info, image_meta, disk_info, rescue=None,"
        " block_device_info=None, context=None, mdevs=None, accel_info=None, share_info=None,"
        " old_guest=None"
    ),
    "_get_all_assigned_mediated_devices": "self, instance=None",
    "_live_migration_operation": (
        "self, context, instance, dest, block_migration, migrate_data, guest, device_names"
    ),
    "_hard_reboot": (
        "self, context, instance, network_info, share_info, block_device_info=None, accel_info=None"
    ),
    "_soft_reboot": "self, instance",
    "_teardown_container": "self, instance",
    "_undefine_domain": "self, instance, keep_vtpm=False, keep_nvram=False",
    "_vgpu_allocations": "self, allocations",
    "check_can_live_migrate_destination": (
        "self, context, instance, src_compute_info, dst_compute_info, block_migration=False,"
        " disk_over_commit=False"
    ),
    "check_can_live_migrate_source": (
        "self, context, instance, dest_check_data, block_device_info=None"
    ),
    "check_source_migrate_data_at_dest": (
        "self, ctxt, instance, migrate_data, migration, limits, allocs"
    ),
    "confirm_migration": "self, context, migration, instance, network_info",
    "finish_migration": (
        "self, context, migration, instance, disk_info, network_info, image_meta,"
        " resize_instance, allocations, block_device_info=None, power_on=True, share_info=None"
    ),
    "finish_revert_migration": (
        "self, context, instance, network_info, migration, block_device_info=None,"
        " power_on=True, share_info=None"
    ),
    "get_available_resource": "self, nodename",
    "get_diagnostics": "self, instance",
    "get_info": "self, instance, use_cache=True",
    "init_host": "self, host",
    "migrate_disk_and_power_off": (
        "self, context, instance, dest, flavor, network_info, block_device_info=None, timeout=0,"
        " retry_interval=0"
    ),
    "post_claim_migrate_data": "self, context, instance, migrate_data, claim",
    "post_live_migration_at_destination": (
        "self, context, instance, network_info, block_migration=False, block_device_info=None"
    ),
    "power_off": "self, instance, timeout=0, retry_interval=0",
    "pre_live_migration": (
        "self, context, instance, block_device_info, network_info, disk_info, migrate_data"
    ),
    "prepare_for_spawn": "self, instance",
    "rescue": (
        "self, context, instance, network_info, image_meta, rescue_password,"
        " block_device_info, share_info"
    ),
    "spawn": (
        "self, context, instance, image_meta, injected_files, admin_password, allocations,"
        " network_info=None, block_device_info=None, power_on=True, accel_info=None"
    ),
    "suspend": "self, context, instance",
    "unrescue": "self, context, instance",
    "update_provider_tree": "self, provider_tree, nodename, allocations=None",
}
DRIVER_33 = {
    **DRIVER_34,
    "finish_migration": DRIVER_34["finish_migration"].removesuffix(", share_info=None"),
    "finish_revert_migration": DRIVER_34["finish_revert_migration"].removesuffix(
        ", share_info=None"
    ),
}
DRIVER_32 = {
    **DRIVER_33,
    "_get_guest_config": DRIVER_34["_get_guest_config"].removesuffix(", old_guest=None"),
}
DRIVER_29 = {
    **DRIVER_32,
    "_get_guest_config": DRIVER_32["_get_guest_config"].removesuffix(", share_info=None"),
    "_hard_reboot": DRIVER_32["_hard_reboot"].replace(" share_info,", ""),
    "_undefine_domain": "self, instance",
    "rescue": DRIVER_32["rescue"].removesuffix(", share_info"),
}
DRIVER = {34: DRIVER_34, 33: DRIVER_33, 32: DRIVER_32, 31: DRIVER_32, 29: DRIVER_29}

# What hands out the devices of the pool and takes them back, and what publishes them. The pool's
# own contract test says what these do.
TRACKER = {
    "_add_assigned_resources": "self, resources",
    "_check_resources": "self, context",
    "_claim_resources": "self, allocations",
    "_populate_assigned_resources": "self, context, instance_by_uuid",
    "_release_assigned_resources": "self, resources",
    "_update": "self, context, compute_node, startup=False",
    "live_migration_claim": "self, context, instance, nodename, migration, limits, allocs",
}
TREE = {
    "new_child": "self, name, parent, uuid=None, generation=None",
    "update_inventory": "self, name_or_uuid, inventory, generation=None",
    "update_resources": "self, name_or_uuid, resources",
    "update_traits": "self, name_or_uuid, traits, generation=None",
}
# What puts the cells of a guest on nodes, and counts what it uses there.
HARDWARE = {
    "get_pci_numa_policy_constraint": "flavor, image_meta",
    "numa_fit_instance_to_host": (
        "host_topology, instance_topology, provider_mapping, limits=None, pci_requests=None,"
        " pci_stats=None"
    ),
    "numa_get_constraints": "flavor, image_meta",
    "numa_usage_from_instance_numa": "host_topology, instance_topology, free=False",
}
# What a guest that moves as it runs goes by, beside what the driver overrides.
CLAIM = {"abort": "self"}
GUEST_34 = {
    "__init__": "self, domain",
    "migrate": (
        "self, destination, migrate_uri=None, migrate_disks=None, destination_xml=None, flags=0,"
        " bandwidth=0, parallel=0"
    ),
}
GUEST_32 = {**GUEST_34, "migrate": GUEST_34["migrate"].removesuffix(", parallel=0")}
GUEST = {34: GUEST_34, 33: GUEST_34, 32: GUEST_32, 31: GUEST_32, 29: GUEST_32}


def parameters(function: Any) -> str:
    """The parameters of ``function`` with their defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(bare))[1:-1]


class TestSignatures(unittest.TestCase):
    maxDiff = None

    def test_of_what_the_driver_overrides(self):
        stock = libvirt_driver.LibvirtDriver
        overridden = {
            name
            for name, value in vars(driver.GPULibvirtDriver).items()
            if hasattr(stock, name)
            and (inspect.isfunction(value) or isinstance(value, (staticmethod, classmethod)))
        }
        signatures = {name: parameters(inspect.getattr_static(stock, name)) for name in overridden}
        self.assertEqual(DRIVER[NOVA], signatures)

    def test_of_what_is_counted_on(self):
        for owner, pinned in (
            (resource_tracker.ResourceTracker, TRACKER),
            (provider_tree.ProviderTree, TREE),
            (hardware, HARDWARE),
            (claims.MoveClaim, CLAIM),
            (libvirt_guest.Guest, GUEST[NOVA]),
        ):
            signatures = {name: parameters(getattr(owner, name)) for name in pinned}
            self.assertEqual(pinned, signatures)
