# SPDX-License-Identifier: Apache-2.0
"""What Ceilometer and CloudKitty make of a month: ``.ci/billing`` runs each in its environment."""
