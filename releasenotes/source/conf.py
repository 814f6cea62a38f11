# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from doc.ext import version as package_version

project = "nova-gpu release notes"
copyright = "nova-gpu developers"
extensions = ["openstackdocstheme", "reno.sphinxext"]
html_theme = "openstackdocs"
openstackdocs_auto_name = False
openstackdocs_auto_version = False
version = release = package_version.of_package()
