# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

project = "nova-gpu"
copyright = "nova-gpu developers"
extensions = [
    "openstackdocstheme",
    "oslo_config.sphinxext",
    "cliff.sphinxext",
    "doc.ext.reference.directives",
]
html_theme = "openstackdocs"
openstackdocs_auto_name = False
