"""Configuration of the documentation site: ``python -m sphinx -b html docs build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import ssl_toolkit

project = "ssl-toolkit"
copyright = "the ssl-toolkit authors"
version = release = ssl_toolkit.__version__
extensions = ["myst_parser", "sphinx_copybutton", "site_pages"]
exclude_patterns = ["_ext", "_templates"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
"""GitHub's anchors, to which the pages link."""

templates_path = ["_templates"]
highlight_language = "none"
smartquotes = False
"""Flags in prose keep their two hyphens."""
html_theme = "furo"
html_title = f"ssl-toolkit {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 80
