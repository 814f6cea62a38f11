# SPDX-License-Identifier: Apache-2.0
"""What Sphinx reads of the code for the reference, so that the two cannot differ."""
