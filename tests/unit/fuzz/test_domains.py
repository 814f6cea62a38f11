# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import strategies as st
from lxml import etree

from nova_gpu.core import exception, model
from nova_gpu.virt.usage import domains
from tests.fixtures import cards
from tests.fixtures.bases import fuzz as base

A, B = cards.addresses("0000:04:00.0", "0000:05:00.0")
PARTS = domains.Parts({"/dev/nvidia0": A, "/dev/nvidia1": B}, {A: A, B: B})

_TAGS = st.sampled_from(
    ["domain", "metadata", "devices", "hostdev", "filesystem", "source", "address", "char"]
    + [f"{{{domains.NAMESPACE}}}{name}" for name in ("gpus", "gpu")]
)
_VALUES = st.sampled_from(
    [str(A), "0x04", "0x0000", "0x", "4", "-1", "", "pci", "misc", "/dev/nvidia0", "0x1" * 99]
) | st.text(st.characters(min_codepoint=32, exclude_categories=["C"]), max_size=8)
_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["address", "domain", "bus", "slot", "function", "type", "dir"]), _VALUES
)


def _element(
    tag: str, attributes: dict[str, str], text: str, inner: list[etree._Element]
) -> object:
    element = etree.Element(tag, attributes)
    element.text = text
    element.extend(inner)
    return element


_COMMENTS = st.sampled_from(["comment", "instruction"]).map(
    lambda kind: etree.Comment("x") if kind == "comment" else etree.ProcessingInstruction("a", "b")
)
_ELEMENTS = st.recursive(
    st.builds(_element, _TAGS, _ATTRIBUTES, _VALUES, st.just([])) | _COMMENTS,
    lambda inner: st.builds(_element, _TAGS, _ATTRIBUTES, _VALUES, st.lists(inner, max_size=3)),
    max_leaves=10,
)


def _metadata(addresses: list[str], others: list[etree._Element]) -> etree._Element:
    gpus = etree.Element(f"{{{domains.NAMESPACE}}}gpus")
    for address in addresses:
        etree.SubElement(gpus, f"{{{domains.NAMESPACE}}}gpu", address=address)
    gpus.extend(others)
    return gpus


_METADATA = st.builds(
    _metadata, st.lists(st.just(str(A)) | _VALUES, max_size=2), st.lists(_ELEMENTS, max_size=2)
)


def _domain(metadata: list[etree._Element], devices: list[etree._Element]) -> str:
    domain = etree.Element("domain")
    etree.SubElement(domain, "metadata").extend(metadata)
    etree.SubElement(domain, "devices").extend(devices)
    return etree.tostring(domain, encoding="unicode")


class DomainsTest(base.FuzzTestCase):
    def read(self, xml: str) -> frozenset[model.PciAddress] | None:
        try:
            return domains.gpus_in(xml, PARTS)
        except exception.DomainsUnreadable:
            return None

    @base.fuzzed(metadata=st.lists(_METADATA | _ELEMENTS, max_size=2), devices=st.lists(_ELEMENTS))
    def test_what_libvirt_may_answer(
        self, metadata: list[etree._Element], devices: list[etree._Element]
    ) -> None:
        self.read(_domain(metadata, devices))

    @base.fuzzed(metadata=_METADATA, devices=st.lists(_ELEMENTS, max_size=2))
    def test_what_has_a_card_is_never_said_to_have_none(
        self, metadata: etree._Element, devices: list[etree._Element]
    ) -> None:
        source = "<source><address domain='0x0000' bus='0x05' slot='0x00' function='0x0'/></source>"
        taken = etree.fromstring(f"<hostdev mode='subsystem' type='pci'>{source}</hostdev>")
        named = self.read(_domain([metadata], [*devices, taken]))
        if named is not None:
            self.assertIn(B, named)

    @base.fuzzed(xml=base.TEXT | st.sampled_from(["<a", "<a/>", "<a>" * 5000]))
    def test_what_is_no_domain(self, xml: str) -> None:
        self.read(xml)
