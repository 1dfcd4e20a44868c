"""Settings of the documentation: Markdown pages, no network."""

project = "tnmars"
author = "The tnmars authors"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["results"]
