# SPDX-License-Identifier: Apache-2.0
project = "nova-gpu release notes"
copyright = "nova-gpu developers"
extensions = ["openstackdocstheme", "reno.sphinxext"]
html_theme = "openstackdocs"
openstackdocs_auto_name = False
