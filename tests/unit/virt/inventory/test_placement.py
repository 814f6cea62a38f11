# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import requests

from nova_gpu.core import exception
from nova_gpu.virt.inventory import placement


class _Client:
    """Nova's report client gives what keystoneauth gives: an answer of requests'."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = requests.Response()
        self._answer.status_code = status
        self._answer._content = body
        self.asked: list[str] = []

    def get(self, url: str, version: str) -> requests.Response:
        self.asked.append(url)
        return self._answer


class GetTest(unittest.TestCase):
    def test_the_body(self) -> None:
        client = _Client(200, b'{"inventories": {}}')
        self.assertEqual({"inventories": {}}, placement.get(client, "/resource_providers"))
        self.assertEqual(["/resource_providers"], client.asked)

    def test_an_answer_that_is_none_to_use(self) -> None:
        with self.assertRaises(exception.PlacementFailed) as raised:
            placement.get(_Client(503, b"maintenance"), "/usages")
        self.assertIn("/usages", str(raised.exception))
        self.assertIn("503 maintenance", str(raised.exception))
