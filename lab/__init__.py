# SPDX-License-Identifier: Apache-2.0
"""The lab: a cloud, a VM with cards and a bare Debian, to show and test nova-gpu on one machine."""
