# SPDX-License-Identifier: Apache-2.0
"""GPUs as a resource of OpenStack Nova: a compute driver, scheduler plug-ins and commands."""
