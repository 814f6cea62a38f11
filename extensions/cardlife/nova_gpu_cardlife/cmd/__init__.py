# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-gpu test``."""
