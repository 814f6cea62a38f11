# SPDX-License-Identifier: Apache-2.0
"""Commands about the life of cards, for all hosts together."""
