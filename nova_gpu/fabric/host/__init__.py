# SPDX-License-Identifier: Apache-2.0
"""What a host says of its boards: Fabric Manager and its library, and the places of cards."""
