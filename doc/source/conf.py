# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
sys.path.extend(map(str, pathlib.Path(__file__).parents[2].glob("extensions/*")))

from doc.ext import version as package_version

project = "nova-gpu"
copyright = "nova-gpu developers"
extensions = [
    "openstackdocstheme",
    "oslo_config.sphinxext",
    "cliff.sphinxext",
    "doc.ext.reference.directives",
]
html_theme = "openstackdocs"
# The box of Sphinx's own search, which works offline; no other site is asked
html_theme_options = {
    "analytics_tracking_code": "",
    "display_badge": False,
    "sidebar_search": True,
}
openstackdocs_auto_name = False
openstackdocs_auto_version = False
version = release = package_version.of_package()
