# SPDX-License-Identifier: Apache-2.0
"""Images and aggregates that name GPUs, before the scheduler with the filters that judge them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.functional import base


class ImageTest(base.GPUServersTestBase):
    def test_an_image_that_requires_gpus(self) -> None:
        self.start_host()
        any_gpu = self.image(**{"trait:CUSTOM_GPU": "required"})
        fermi = self.image(**{"trait:CUSTOM_GPU_ARCH_FERMI": "required"})
        with_gpus, without = self.flavor(**base.BLUEPRINT), self.flavor()
        for image in (any_gpu, fermi):
            self.boot(with_gpus, image_uuid=image)
            fault = self.boot_refused(without, image_uuid=image)
            self.assertIn("and the flavor has no GPU; use a flavor with GPUs", fault)
        kepler = self.image(**{"trait:CUSTOM_GPU_ARCH_KEPLER": "required"})
        self.boot_refused(self.gpu_flavor(1), image_uuid=kepler)
        self.assertInventory(used=4)


class AggregateFilterTest(base.GPUServersTestBase):
    """AggregateInstanceExtraSpecsFilter judges every key without a namespace, ours too."""

    ADDITIONAL_FILTERS = ("AggregateInstanceExtraSpecsFilter", "GPUFilter")

    def test_what_a_flavor_or_an_aggregate_must_say(self) -> None:
        self.start_host()
        words = self.flavor(**base.BLUEPRINT)
        self.boot_refused(words)
        # Either the flavor has no such key, ...
        placements = {"resources:PGPU": "2", "trait:CUSTOM_GPU_ARCH_FERMI": "required"}
        self.boot(self.flavor(**placements))
        # ... or the aggregate has them all, with the most that may be asked for.
        known = {"gpus": "8", "gpu_arch": "fermi", "hypervisor": "LXC"}
        aggregate = _aggregate(self, known, "host1")
        self.boot(words)
        self.boot_refused(self.flavor(**base.BLUEPRINT | {"hypervisor": "s== KVM"}))
        # Scoped keys of the filter go with either.
        own = {"aggregate_instance_extra_specs:pool": "gpu"}
        self.boot_refused(self.flavor(**placements, **own))
        _set(self, aggregate, {"pool": "gpu"})
        self.boot(self.flavor(**placements, **own))
        self.assertInventory(used=6)


def _aggregate(test: base.GPUServersTestBase, metadata: Mapping[str, str], host: str) -> int:
    body = {"aggregate": {"name": "gpu"}}
    aggregate = int(test.admin_api.post_aggregate(body)["id"])
    test.admin_api.add_host_to_aggregate(aggregate, host)
    _set(test, aggregate, metadata)
    return aggregate


def _set(test: base.GPUServersTestBase, aggregate: int, metadata: Mapping[str, str | None]) -> None:
    action = {"set_metadata": {"metadata": dict(metadata)}}
    test.admin_api.post_aggregate_action(aggregate, action)
