# SPDX-License-Identifier: Apache-2.0
"""A bare Debian in which this repository's commands run as on a user's new machine."""
