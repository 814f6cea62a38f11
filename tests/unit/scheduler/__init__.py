# SPDX-License-Identifier: Apache-2.0
"""Against Nova's own objects and a Placement in this process."""

import tests.functional  # noqa: F401  decides how Nova runs, before Nova is imported
