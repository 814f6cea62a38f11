# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from unittest import mock

from nova import exception as nova_exception
from nova.api.validation.extra_specs import base, validators

from nova_gpu.api import extra_spec_validators
from nova_gpu.core.flavor import condition, parsers


class ValidatorTest(unittest.TestCase):
    def setUp(self) -> None:
        registry = {validator.name: validator for validator in extra_spec_validators.register()}
        patch = mock.patch.dict(validators.VALIDATORS, registry)
        patch.start()
        self.addCleanup(patch.stop)

    def test_accepted(self) -> None:
        for name, value in (
            ("gpus", "= 2"),
            ("gpu_arch", "<or> fermi <or> kepler"),
            ("hypervisor", "KVM"),
            ("hypervisor_type", "s== ironic"),
            ("hypervisor_type", "s>= a"),
            ("gpu:option_rom", "True"),
            ("gpu:guest_topology", "Required"),
            ("gpu:on_stop", "release"),
            ("gpu:model", "<or> A100 SXM4 80GB <or> H200"),
            ("gpu:memory_mib", ">=40960"),
            ("gpu:heads", ">= 2"),
            ("gpu:topology", "nvlink"),
            ("gpu:topology_policy", "preferred"),
            ("gpu:distribution", "spread"),
            ("gpu:near", "nic"),
            ("gpu:near_policy", "required"),
            ("gpu:peer_access", "preferred"),
        ):
            with self.subTest(name=name, value=value):
                validators.validate(name, value)

    def test_refused_with_key_value_and_what_is_allowed(self) -> None:
        for name, value, allowed in (
            ("gpus", "<= 2", parsers.ALLOWED_COUNTS),
            ("gpu_arch", "s== unknown", condition.ALLOWED_NAMES),
            ("hypervisor", "<all-in> LXC QEMU", condition.ALLOWED_NAMES),
            ("hypervisor_type", "= QEMU", condition.ALLOWED_NAMES),
            ("gpu:option_rom", "perhaps", parsers.ALLOWED_SWITCH),
            ("gpu:guest_topology", "numa", "auto or required or flat"),
            ("gpu:on_stop", "delete", "keep or release"),
            ("gpu:model", "H100, H200", condition.ALLOWED_NAMES),
            ("gpu:memory_mib", "40 GiB", condition.ALLOWED_NUMBERS),
            ("gpu:heads", "two", condition.ALLOWED_NUMBERS),
            ("gpu:topology", "pcie", "any or numa or nvlink"),
            ("gpu:topology_policy", "legacy", "required or preferred"),
            ("gpu:distribution", "random", "pack or spread"),
            ("gpu:near", "gpu", "any or nic or nvme"),
            ("gpu:peer_access", "true", "none or preferred or required"),
            ("gpu:near_policy", "any", "required or preferred"),
        ):
            with (
                self.subTest(name=name, value=value),
                self.assertRaises(nova_exception.ValidationError) as caught,
            ):
                validators.validate(name, value)
            text = caught.exception.format_message()
            for part in (name, repr(value), allowed):
                self.assertIn(part, text)

    def test_every_word_is_described_for_whoever_lists_them(self) -> None:
        for validator in extra_spec_validators.register():
            self.assertIsInstance(validator, base.ExtraSpecValidator)
            self.assertTrue(validator.description)
            self.assertTrue(validator.value["description"])

    def test_only_our_own_namespace_is_closed(self) -> None:
        """To find a misspelt word; the words without a namespace leave all others alone."""
        validators.validate("anything", "goes")
        validators.validate("other:anything", "goes")
        with self.assertRaises(nova_exception.ValidationError):
            validators.validate("gpu:optionrom", "false")
