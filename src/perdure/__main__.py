"""`python -m perdure`: the command line."""

import sys

from perdure.cli.main import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
