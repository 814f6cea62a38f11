# SPDX-License-Identifier: Apache-2.0
"""Choice of the host: a host's report, whether a request fits, which is best, how many more fit."""
