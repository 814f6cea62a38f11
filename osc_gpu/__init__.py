# SPDX-License-Identifier: Apache-2.0
"""Commands of OpenStackClient, ``openstack gpu``, which use the APIs of Nova and Placement.

A *group* is a resource provider in Placement: the GPUs of one product in one delivery mode on one
host, or their vGPUs of one type. What asks Nova or Placement raises CommandError if they refuse, or
take too long.
"""
