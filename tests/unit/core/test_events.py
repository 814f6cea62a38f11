# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest

from nova_gpu.core.events import Event, EventType


class TestPayload(unittest.TestCase):
    def test_plain_values(self) -> None:
        event = Event(EventType.CLAIM, 2, host="gpu1", addresses=("0000:04:00.0", "0000:05:00.0"))
        payload = event.payload
        self.assertEqual(payload, json.loads(json.dumps(payload)))
        self.assertEqual(["0000:04:00.0", "0000:05:00.0"], payload["addresses"])
        self.assertNotIn("type", payload)
        self.assertIsNone(payload["reason"])

    def test_what_is_wrong_is_an_error(self) -> None:
        errors = {each for each in EventType if each.is_error}
        self.assertEqual({"gpu.fault", "gpu.quarantine", "gpu.no_valid_host"}, errors)
