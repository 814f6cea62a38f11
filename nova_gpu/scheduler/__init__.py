# SPDX-License-Identifier: Apache-2.0
"""What nova-scheduler loads: two request filters, a filter and a weigher of hosts."""
