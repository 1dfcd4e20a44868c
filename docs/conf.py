"""Settings of the documentation: Markdown pages, no network."""

project = "tnmars"
author = "The tnmars authors"
extensions = ["myst_parser", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
exclude_patterns = ["results"]
