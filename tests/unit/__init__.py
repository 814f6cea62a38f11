# SPDX-License-Identifier: Apache-2.0
# Some unit tests use Nova's fixtures, so here too Nova chooses eventlet or threads first of all.
# What that imports, nova.tests.unit, has registered Nova's objects.
import tests.functional  # noqa: F401
from tests.fixtures import checkout

__path__ += checkout.folders(__name__)
load_tests = checkout.loader(__name__)
