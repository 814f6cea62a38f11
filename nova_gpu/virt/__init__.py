# SPDX-License-Identifier: Apache-2.0
"""The compute host's side of Nova: the driver, which only overrides, and what it calls.

``host_gpus`` puts the packages together; ``periodic`` is what each period does, ``publication``
what Placement and the scheduler read, ``reporter`` what is notified of, ``diagnostics`` and
``counters`` what others may read, ``libvirt_errors`` and ``libvirt_version`` what libvirt says and
is, ``signatures`` Nova's methods that are overridden, ``threads`` what runs next to Nova's own
threads.
"""
