# SPDX-License-Identifier: Apache-2.0
"""``compute_driver = gpu.GPULibvirtDriver``: Nova's libvirt driver with GPUs.

This module only has overrides, which call the other modules of this package. Unused arguments pass
through unchanged, so that one source fits every Nova release; a test pins the signatures.
"""

from __future__ import annotations

import functools
from typing import Any

from nova import exception as nova_exception
from nova.virt.libvirt import driver

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.virt import expected_errors, libvirt_errors, signatures
from nova_gpu.virt.delivery import container_domain, domain_xml
from nova_gpu.virt.host_gpus import HostGPUs
from nova_gpu.virt.lifecycle.start import Kind
from nova_gpu.virt.live_migration import arrivals, departures


@signatures.of_parent
class GPULibvirtDriver(driver.LibvirtDriver):  # type: ignore[misc]
    def __init__(self, virtapi: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(virtapi, *args, **kwargs)
        try:
            self._gpus = HostGPUs(self._host, self.virtapi)
        except exception.InvalidOption as error:
            raise nova_exception.InvalidConfiguration(str(error)) from error

    def init_host(self, *args: Any, **kwargs: Any) -> None:
        super().init_host(*args, **kwargs)
        self._gpus.refusals.starts.is_repeating = True  # also after SIGHUP, with the same driver
        signatures.say_if_untested()
        expected_errors.log_in_a_line()
        container_domain.replace_change_of_owners()
        self._gpus.periods.begin()

    # State of the host

    def get_available_resource(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self._gpus.refusals.starts.is_repeating = False  # Nova has initialized its instances
        resources: dict[str, Any] = super().get_available_resource(*args, **kwargs)
        self._gpus.periods.refresh()
        if (stats := self._gpus.publication.stats()) is not None:
            # Nova 31.0, as in Debian 13, and 31.1 report none of their own.
            resources.setdefault("stats", {})[names.STATS] = stats
        return resources

    def update_provider_tree(self, tree: Any, nodename: str, *args: Any, **kwargs: Any) -> None:
        super().update_provider_tree(tree, nodename, *args, **kwargs)
        self._gpus.publication.update_provider_tree(tree, nodename)

    # Configuration and diagnostics of a guest

    def _get_guest_config(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        guest = super()._get_guest_config(instance, *args, **kwargs)
        return self._gpus.starts.add_gpus(instance, guest)

    @staticmethod
    def _create_idmaps(*args: Any, **kwargs: Any) -> list[Any]:
        plain = super(GPULibvirtDriver, GPULibvirtDriver)._create_idmaps(*args, **kwargs)
        return [domain_xml.id_map(uid_map) for uid_map in plain]

    def get_diagnostics(self, instance: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        diagnostics: dict[str, Any] = super().get_diagnostics(instance, *args, **kwargs)
        diagnostics.update(self._gpus.diagnostics(self._host.get_guest(instance)))
        return diagnostics

    # Nova's own vGPUs, without those of nova-gpu

    def _vgpu_allocations(self, allocations: Any, *args: Any, **kwargs: Any) -> Any:
        own = self._gpus.assigned.allocations_of_others(allocations)
        return super()._vgpu_allocations(own, *args, **kwargs)

    def _get_all_assigned_mediated_devices(
        self, instance: Any = None, *args: Any, **kwargs: Any
    ) -> dict[str, str]:
        devices = super()._get_all_assigned_mediated_devices(instance, *args, **kwargs)
        return self._gpus.assigned.devices_of_others(instance, devices, self._gpus.ledger)

    # Operations that start a guest

    def prepare_for_spawn(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        super().prepare_for_spawn(instance, *args, **kwargs)
        self._gpus.starts.prepare(instance)

    def spawn(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        with self._gpus.starts.spawning(instance):
            return super().spawn(context, instance, *args, **kwargs)

    def _create_guest(self, *args: Any, post_xml_callback: Any = None, **kwargs: Any) -> Any:
        with libvirt_errors.defining(post_xml_callback) as defined:
            return super()._create_guest(*args, post_xml_callback=defined, **kwargs)

    def _soft_reboot(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        if self._gpus.starts.is_reboot_hard(instance):
            # A hard reboot powers the guest off: first ask it to shut down, as a soft reboot does.
            retry_s = CONF.compute.shutdown_retry_interval
            self._clean_shutdown(instance, CONF.libvirt.wait_soft_reboot_seconds, retry_s)
            return False
        with self._gpus.starts.starting(instance, Kind.SOFT_REBOOT):
            return super()._soft_reboot(instance, *args, **kwargs)

    def _hard_reboot(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        with self._gpus.starts.starting(
            instance, Kind.REBOOT, lambda: self._destroy(instance)
        ) as start:
            if start is None:
                return None
            return super()._hard_reboot(context, instance, *args, **kwargs)

    def rescue(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        image_meta: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        named = network_info, self._gpus.starts.rescue_image(instance, image_meta)
        again = functools.partial(domain_xml.define_again, self, context, instance, *named)
        with self._gpus.starts.rescuing(instance, lambda: again(*args, **kwargs)) as goes_on:
            return super().rescue(context, instance, *named, *args, **kwargs) if goes_on else None

    def unrescue(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        with self._gpus.starts.starting(instance, Kind.UNRESCUE):
            super().unrescue(context, instance, *args, **kwargs)

    def finish_migration(
        self, context: Any, migration: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with self._gpus.starts.starting(instance, Kind.MOVE):
            return super().finish_migration(context, migration, instance, *args, **kwargs)

    def finish_revert_migration(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        migration: Any,
        block_device_info: Any = None,
        power_on: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        named = network_info, migration, block_device_info, power_on
        kind = Kind.REVERT if power_on else Kind.REVERT_STOPPED
        with self._gpus.starts.starting(instance, kind):
            return super().finish_revert_migration(context, instance, *named, *args, **kwargs)

    def _create_domain_cleanup_lxc(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        if not (self._gpus.has_gpus and container_domain.is_in_use(self, instance)):
            super()._create_domain_cleanup_lxc(instance, *args, **kwargs)

    # Operations that are refused for instances with GPUs

    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        if self._gpus.refusals.rescue(instance):
            return
        self._gpus.starts.rebuild(instance)
        super().power_off(instance, *args, **kwargs)
        self._gpus.stops.stopped(instance)

    def get_info(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        self._gpus.refusals.starts.end(instance)
        return super().get_info(instance, *args, **kwargs)

    def suspend(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        self._gpus.refusals.suspend(instance)
        super().suspend(context, instance, *args, **kwargs)

    def check_can_live_migrate_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._gpus.refusals.live_migration_to(instance)
        is_able = self._host_can_support_mdev_live_migration()
        self._gpus.moves.refuse_too_old(instance, is_able=is_able)
        data = super().check_can_live_migrate_destination(context, instance, *args, **kwargs)
        return arrivals.offered(self._gpus.moves, instance, data)

    def check_can_live_migrate_source(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._gpus.refusals.live_migration_from(instance)
        is_able = self._host_can_support_mdev_live_migration()
        self._gpus.moves.refuse_too_old(instance, is_able=is_able)
        data = super().check_can_live_migrate_source(context, instance, *args, **kwargs)
        return departures.asked(self._gpus.moves, instance, data)

    def migrate_disk_and_power_off(
        self, context: Any, instance: Any, dest: Any, flavor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._gpus.refusals.resize(instance, flavor)
        self._gpus.refusals.resize_here(context, instance)
        return super().migrate_disk_and_power_off(context, instance, dest, flavor, *args, **kwargs)

    # Live migration

    def post_claim_migrate_data(
        self, context: Any, instance: Any, migrate_data: Any, claim: Any, *args: Any, **kwargs: Any
    ) -> Any:
        data = super().post_claim_migrate_data(
            context, instance, migrate_data, claim, *args, **kwargs
        )
        return arrivals.claimed(self._gpus.moves, instance, data, claim)

    def check_source_migrate_data_at_dest(
        self, ctxt: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        data = super().check_source_migrate_data_at_dest(ctxt, instance, *args, **kwargs)
        return arrivals.mapped(self._gpus.moves, instance, data)

    def pre_live_migration(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        arrivals.prepare(self._gpus.moves, instance)
        return super().pre_live_migration(context, instance, *args, **kwargs)

    def _live_migration_operation(
        self,
        context: Any,
        instance: Any,
        dest: Any,
        block_migration: Any,
        migrate_data: Any,
        guest: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        with departures.leaving(self._gpus.moves, context, instance, guest) as moving:
            super()._live_migration_operation(
                context, instance, dest, block_migration, migrate_data, moving, *args, **kwargs
            )

    def post_live_migration_at_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        super().post_live_migration_at_destination(context, instance, *args, **kwargs)
        self._gpus.moves.stays(instance)

    # Operations that end a guest

    def _destroy(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        self._gpus.end(instance)
        super()._destroy(instance, *args, **kwargs)

    def _teardown_container(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        container_domain.forget_stale_device(instance)
        super()._teardown_container(instance, *args, **kwargs)
        container_domain.detach_left_devices(instance)

    def _undefine_domain(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        with self._gpus.releases.domain_goes(instance):
            super()._undefine_domain(instance, *args, **kwargs)

    def confirm_migration(
        self, context: Any, migration: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        super().confirm_migration(context, migration, instance, *args, **kwargs)
        self._gpus.releases.confirmed(instance)
