# SPDX-License-Identifier: Apache-2.0
"""Pure functions over frozen values. The standard library only.

Outside the packages: the model of cards and groups (``model``), of what an instance is given
(``device``), names that leave this project (``names``), errors (``exception``), what a refused
operation and an unfit guest say (``refusal_texts``), whether what an instance holds is what its
flavor asks for (``compare``), the state of a card (``health``) and what containers are given
(``contents``).
"""
