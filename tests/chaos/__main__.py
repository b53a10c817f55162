"""Fault-injection rigs that try to break every guarantee, for hours.

python -m tests.chaos                                     every rig on every database, up to its goal
python -m tests.chaos --list                              what there is, and how far it is
python -m tests.chaos --rig kills --database sqlite --minutes 5 --seed 7
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from tests.chaos.rigs import RIGS, Rig, rig_named
from tests.chaos.runner import Options, Session, table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.count is not None and asked.fresh:
        parser.error("--count plays whatever was played before; it does not go with --fresh")
    try:
        pairs = _pairs(asked.rig or list(RIGS), asked.database)
    except ValueError as error:
        parser.error(str(error))
    if asked.list:
        print(*table(pairs), sep="\n")
        return 0
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # a database that goes away is no news here
    return Session(pairs, Options(asked.minutes, asked.seed, asked.count, asked.fresh, asked.keep_going)).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rig", nargs="+", metavar="NAME", help=f"of {', '.join(RIGS)}; all unless said")
    parser.add_argument("--database", nargs="+", metavar="NAME", help="all that a rig knows unless said")
    parser.add_argument("--minutes", type=_positive(float), help="stop after so long, goal or not")
    parser.add_argument("--seed", type=int, help="of the first round; the next have the next numbers")
    parser.add_argument("--count", type=_positive(int), help="play so many episodes now, goal or not")
    parser.add_argument("--fresh", action="store_true", help="forget what was played before")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    parser.add_argument("--list", action="store_true", help="show rigs, databases, goals and what is done")
    return parser


def _positive(kind: type[int] | type[float]) -> "type[int] | type[float]":
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above zero")
        return value

    parse.__name__ = kind.__name__  # argparse names it in its own error
    return parse  # type: ignore[return-value]


def _pairs(names: Sequence[str], databases: Sequence[str] | None) -> list[tuple[Rig, str]]:
    """Rigs with the databases they know; an unknown name is an error."""
    if unknown := [name for name in names if name not in RIGS]:
        raise ValueError(f"there is no rig {unknown[0]!r}; there are {', '.join(RIGS)}")
    rigs = [rig_named(name) for name in dict.fromkeys(names)]
    pairs = [(rig, each) for rig in rigs for each in rig.goals if databases is None or each in databases]
    for each in databases or ():
        if all(backend != each for _, backend in pairs):
            known = dict.fromkeys(backend for rig in rigs for backend in rig.goals)
            raise ValueError(f"none of these rigs knows a database {each!r}; they know {', '.join(known)}")
    return pairs


if __name__ == "__main__":
    sys.exit(main())
