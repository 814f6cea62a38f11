# SPDX-License-Identifier: Apache-2.0
"""Commands of OpenStackClient, ``openstack gpu``: they ask Nova and Placement by their APIs."""
