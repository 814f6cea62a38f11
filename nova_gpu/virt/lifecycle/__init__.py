# SPDX-License-Identifier: Apache-2.0
"""An instance's life with GPUs: its start, stops, its end with the cleaning, and refusals."""
