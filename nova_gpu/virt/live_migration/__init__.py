# SPDX-License-Identifier: Apache-2.0
"""Live migration of guests with vGPUs: data between the hosts, the destination, the source."""
