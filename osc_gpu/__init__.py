# SPDX-License-Identifier: Apache-2.0
"""Commands of OpenStackClient, ``openstack gpu``, which use the APIs of Nova and Placement."""
