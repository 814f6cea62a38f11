# SPDX-License-Identifier: Apache-2.0
"""Flavors and what they ask for: extra specs read into a request, checked, put into words, and
compared with what an instance holds.
"""
