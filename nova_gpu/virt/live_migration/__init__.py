# SPDX-License-Identifier: Apache-2.0
"""Live migration of guests with vGPUs: the source's and the destination's steps and messages."""
