# SPDX-License-Identifier: Apache-2.0
"""Pure functions over frozen values. The standard library only.

Outside the packages: the model of cards and groups (``model``), an instance's devices (``device``),
the reasons why devices are not offered (``availability``), strings shared with other services
(``names``), errors (``exception``, ``boundary``), the texts of refused operations
(``refusal_texts``), the comparison of an instance's GPUs with its flavor (``flavor_mismatch``), the
faults of a card (``health_verdict``), the files of a container (``container``), optional
capabilities (``extensions``), and parsing and printing untrusted text (``json_text``,
``printable``).
"""
