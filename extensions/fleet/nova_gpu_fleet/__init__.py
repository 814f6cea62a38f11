# SPDX-License-Identifier: Apache-2.0
"""The part of fleets that Nova's services know: extra specs of flavors, and closed hosts."""
