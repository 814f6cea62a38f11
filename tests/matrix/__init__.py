# SPDX-License-Identifier: Apache-2.0
"""Operations on instances with GPUs, combined from tables: in every state, with every failure."""
