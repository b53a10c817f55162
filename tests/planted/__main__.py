"""Plant each bug and see that a named test catches it: `make planted`, or `python -m tests.planted [words…]`."""

import argparse
import asyncio
import sys
import time

from tests.planted.bugs import SOURCE, Bug, all_bugs
from tests.planted.detection import hunt, run


def chosen(words: list[str]) -> list[Bug]:
    """The bugs whose description has all of these words."""
    return [bug for bug in all_bugs() if all(word in bug.what for word in words)]


async def main(bugs: list[Bug]) -> int:
    """Return how many bugs were not caught."""
    tests = list(dict.fromkeys(test for bug in bugs for test in bug.caught_by))
    print(f"{len(bugs)} bugs; without any, their tests must pass …", flush=True)
    code, said = await run(SOURCE, *tests, longest_sec=1800)
    if code != 0:
        print(f"they do not: {said}")
        return 1
    missed = 0
    for number, bug in enumerate(bugs, 1):
        began = time.monotonic()
        verdict = await hunt(bug)
        missed += verdict.caught_by is None
        fate = f"caught by {verdict.caught_by}" if verdict.caught_by else f"NOT CAUGHT {verdict.trouble}"
        print(f"{number:3}/{len(bugs)} {time.monotonic() - began:5.1f} s  {bug.what}: {fate}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} caught")
    return missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("words", nargs="*", help="only bugs whose description has these words")
    given = parser.parse_args()
    if not (found := chosen(given.words)):
        parser.error(f"no bug has {' '.join(given.words)} in its description")
    sys.exit(1 if asyncio.run(main(found)) else 0)
