# SPDX-License-Identifier: Apache-2.0
"""GPUs of a container: CDI specifications, libraries, mounts, leftover processes."""
