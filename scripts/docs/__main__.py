"""The commands: `build` and `serve` for `make docs` and `make docs-serve`, and `stage`, which `serve` calls."""

import argparse
import sys

from scripts.docs.building import FOLDER, BuildError, build, serve
from scripts.docs.definitions import NotDefinedError
from scripts.docs.navigation import NavigationError
from scripts.docs.pages import ROOT
from scripts.docs.staging import stage


def main() -> int:
    """Run a command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description="Build the documentation site.")
    parser.add_argument("command", choices=["build", "serve", "stage"])
    parser.add_argument("--address", default="127.0.0.1:8000", help="where `serve` listens (default: %(default)s)")
    given = parser.parse_args()
    try:
        if given.command == "serve":
            return serve(given.address)
        if given.command == "stage":
            stage(FOLDER)
        else:
            print(f"the site is in {build().relative_to(ROOT)}: open index.html, or use `make docs-serve`")
    except (BuildError, NavigationError, NotDefinedError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
