# SPDX-License-Identifier: Apache-2.0
"""What stands behind ``tools/test``: environments, suites and their outcome.

It runs before anything is installed, so it needs the standard library only.
"""
