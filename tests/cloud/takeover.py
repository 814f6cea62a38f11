# SPDX-License-Identifier: Apache-2.0
"""What differs in a cloud's databases when nova-gpu has its instances, and when it has had them.

The patterns are of lines of :func:`tests.cloud.databases.differences`.
"""

from __future__ import annotations

_SPEC = r"api\.request_specs\[.*\]\.spec"
# Once the instances are given back
REMAINS = (
    # Nova itself writes a request spec so when the instance moves (RequestSpec.save): with fields
    # that it left out at first, and without those that count for the first host alone.
    rf"{_SPEC}\.(id|pci_requests\.instance_uuid): \(nothing\) -> .*",
    rf"{_SPEC}\.pci_requests\.requests\.\d\.(is_new: \(nothing\) -> False"
    r"|requester_id: \(nothing\) -> None)",
    rf"{_SPEC}\.(requested_destination: None|requested_resources: (\[\]|None)) -> \(nothing\)",
    # Nova writes the provider when it schedules; it needs none for devices that it counts already.
    r"cell\d\.instance_extra\[.*\]\.pci_requests\.\d\.spec\.0\.rp_uuids: .* -> \(nothing\)",
    # The row of a function was removed and made anew. Nova writes the provider, which it made anew
    # as well, with the row's first write only, and finds it out whenever nova-compute starts.
    r"cell\d\.pci_devices\[.*\]\.uuid: .*",
    r"cell\d\.pci_devices\[.*\]\.extra_info(\.rp_uuid: .* -> \(nothing\)|: \(nothing\) -> \{\})",
    # Placement knows a trait for good. No provider has these.
    r"placement\.traits\[CUSTOM_GPU\w*\]\.\w+: \(nothing\) -> .*",
)
# And while nova-gpu has them
MEANWHILE = (
    rf"{_SPEC}\.(flavor\.extra_specs|pci_requests)\..*",
    rf"{_SPEC}\.pci_requests\.requests: \(nothing\) -> \[\]",
    r"cell\d\.instance_extra\[.*\]\.(flavor\.cur\.extra_specs|pci_requests|resources)[.:].*",
    r"cell\d\.instance_system_metadata\[.*nova_gpu_former_.*\]\..*: \(nothing\) -> .*",
    r"cell\d\.pci_devices\[.*\].* -> \(nothing\)",
    # Of what stays stock Nova's: the request's number among those of its instance
    r"cell\d\.pci_devices\[.*\]\.request_id: '<request \d .*>' -> '<request \d .*>'",
    r"cell\d\.compute_nodes\[.*\]\.(pci_stats|stats\.nova_gpu)\..*",
    # Of providers below a compute node's own, whose names begin with its name
    r"placement\.\w+\[(\w+ )?\w+?_(gpu|pci|0000:)_?.*\]\..*",
)
