# SPDX-License-Identifier: Apache-2.0
"""nova-gpu's own files on the compute host: former drivers, quarantine, proofs of cleaning."""
