# SPDX-License-Identifier: Apache-2.0
project = "nova-gpu"
copyright = "nova-gpu developers"
extensions = ["openstackdocstheme", "oslo_config.sphinxext", "cliff.sphinxext"]
html_theme = "openstackdocs"
openstackdocs_auto_name = False
