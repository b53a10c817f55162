"""Anchors of headings on the site: the same as on GitHub."""

from collections.abc import Callable

from scripts.docs.pages import slug


def slugify() -> Callable[[str, str], str]:
    """Return the function that the table of contents of Python-Markdown calls; the site's configuration names it."""
    return slug
