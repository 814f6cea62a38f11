# SPDX-License-Identifier: Apache-2.0
"""Pure functions over frozen values. The standard library only.

Outside the packages: the model of cards and groups (``model``), an instance's devices (``device``),
the reasons why devices are not offered (``availability``), strings shared with other services
(``names``), errors (``exception``, ``boundary``), the texts of refused operations
(``refusal_texts``), the comparison of an instance's GPUs with its flavor (``compare``), the state
of a card (``health``), the contents of a container (``contents``), optional capabilities
(``guests``), and texts that are safe to print (``printable``, ``json_text``).
"""
