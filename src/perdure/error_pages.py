"""Where the documentation describes an error code; problem details (RFC 9457) have this address as their type."""

import re

ADDRESS = "https://github.com/perdure/perdure/blob/main/docs/errors/{code}.md"
NO_PAGE = "about:blank"  # by RFC 9457: the problem has no meaning beyond that of its status
_DOCUMENTED = re.compile(r"perdure|copy|(?:storage|engine|http|cli)(?:\.[a-z_]+)?")


def page_address(code: str) -> str:
    """Return the address of the page about a code, or `about:blank` for a code that is not one of perdure's own."""
    return ADDRESS.format(code=code) if _DOCUMENTED.fullmatch(code) else NO_PAGE
