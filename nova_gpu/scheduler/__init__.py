# SPDX-License-Identifier: Apache-2.0
"""Extensions of nova-scheduler: two request filters, a filter and a weigher of hosts."""
