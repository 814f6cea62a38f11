# SPDX-License-Identifier: Apache-2.0
"""A bare Debian 12 to run this repository's commands in, as who tries them for the first time."""
