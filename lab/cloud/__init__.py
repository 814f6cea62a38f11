# SPDX-License-Identifier: Apache-2.0
"""A whole OpenStack on one machine, in one folder, that leaves nothing behind."""
