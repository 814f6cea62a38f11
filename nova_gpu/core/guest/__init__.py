# SPDX-License-Identifier: Apache-2.0
"""The machine that a KVM guest sees."""
