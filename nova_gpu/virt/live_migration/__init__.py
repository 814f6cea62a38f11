# SPDX-License-Identifier: Apache-2.0
"""Live migration of guests with vGPUs: the data that hosts exchange, the destination, the
source.
"""
