# SPDX-License-Identifier: Apache-2.0
from tests.fixtures import checkout

__path__ += checkout.folders(__name__)
load_tests = checkout.loader(__name__)
