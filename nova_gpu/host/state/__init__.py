# SPDX-License-Identifier: Apache-2.0
"""Files of this project on the compute host: how they are read and written, whom they are
believed from, and the cards in quarantine.
"""
