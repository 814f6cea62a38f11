# SPDX-License-Identifier: Apache-2.0
"""Which host: what a host reports in its stats, whether a request fits there, which host is
best, how many more instances fit.
"""
