# SPDX-License-Identifier: Apache-2.0
"""A whole OpenStack on one machine, in one folder, that can be removed without a trace."""
