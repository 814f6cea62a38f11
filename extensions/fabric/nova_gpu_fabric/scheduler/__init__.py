# SPDX-License-Identifier: Apache-2.0
"""The scheduler's check whether a host has a free partition of the requested size."""
