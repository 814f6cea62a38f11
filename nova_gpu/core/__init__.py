# SPDX-License-Identifier: Apache-2.0
"""Pure functions over frozen values. The standard library only."""
