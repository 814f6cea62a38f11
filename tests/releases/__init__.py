# SPDX-License-Identifier: Apache-2.0
"""Two releases of nova-gpu one after the other on a host whose guests run on."""

# Nova chooses eventlet or threads first of all.
import tests.functional  # noqa: F401
