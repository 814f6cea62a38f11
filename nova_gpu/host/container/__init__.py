# SPDX-License-Identifier: Apache-2.0
"""GPUs of a container: CDI specifications, device nodes, libraries, mounts, leftover processes."""
