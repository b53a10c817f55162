"""Build the documentation site from docs/, the pages at the top of the repository, and the docstrings.

`python -m scripts.docs build` writes it to build/docs/site, and `serve` shows it while it is written. The tests check
links, navigation and completeness with the same modules, without building the site.
"""
