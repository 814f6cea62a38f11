# SPDX-License-Identifier: Apache-2.0
"""What a container gets for its GPUs: CDI specifications, device nodes, libraries, mounts; and
the processes that outlive it.
"""
