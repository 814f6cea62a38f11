# SPDX-License-Identifier: Apache-2.0
"""The health of cards, looked at in every period, and Xids."""
