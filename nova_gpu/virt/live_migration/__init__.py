# SPDX-License-Identifier: Apache-2.0
"""Live migration of guests with vGPUs: the steps of both hosts, and the data that they exchange."""
