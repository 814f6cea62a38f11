# SPDX-License-Identifier: Apache-2.0
"""GPUs of LXC guests: CDI specifications, libraries, mounts, processes of ended guests."""
