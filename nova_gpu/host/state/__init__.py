# SPDX-License-Identifier: Apache-2.0
"""Files of this project on the compute host: reading, writing, trust, quarantine and proofs."""
