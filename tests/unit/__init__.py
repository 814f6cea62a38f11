# SPDX-License-Identifier: Apache-2.0
# Some unit tests use Nova's fixtures, so here too Nova chooses eventlet or threads first of all.
import tests.functional  # noqa: F401
