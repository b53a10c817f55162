"""The program `perdure`. It imports the package perdure only if that is needed, because an import takes a while."""

import gc
import sys

VERSION_FLAGS = ("--version", "-V")


def main() -> int:
    """Run the command line with the arguments of this process, and return its exit code."""
    try:
        if len(sys.argv) == 2 and sys.argv[1] in VERSION_FLAGS:
            return _print_version()
        gc.disable()  # imports leave much behind, but no garbage: a fifth of their time would be spent looking for it
        from perdure.cli.main import run

        gc.freeze()
        gc.enable()
        return run(sys.argv[1:])
    except KeyboardInterrupt:  # before the command line could handle it
        return 130


def _print_version() -> int:
    from importlib.metadata import version

    print(f"perdure {version('perdure')}")
    return 0
