# SPDX-License-Identifier: Apache-2.0
"""Live migration of guests with vGPUs: the hosts' messages, the destination, the source."""
