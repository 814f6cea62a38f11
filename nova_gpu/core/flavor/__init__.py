# SPDX-License-Identifier: Apache-2.0
"""Flavors: extra specs parsed into a request, checked and described."""
