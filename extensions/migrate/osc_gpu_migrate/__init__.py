# SPDX-License-Identifier: Apache-2.0
"""Commands about flavors and instances with GPUs of stock Nova, for all hosts together."""
