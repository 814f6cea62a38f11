# SPDX-License-Identifier: Apache-2.0
"""The way from stock Nova's passthrough and mediated devices to nova-gpu, with guests running."""
