"""The aggregates of a storage share one object, so none may override a name of another."""

from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage
from perdure.testing.reference import Reference


def hidden(kind: type) -> set[str]:
    """Names that two classes define of which neither is built on the other."""
    found: dict[str, type] = {}
    clashes = set()
    for aggregate in kind.__mro__[:-1]:
        for name in vars(aggregate):
            if name.startswith("__"):
                continue
            if not issubclass(found.setdefault(name, aggregate), aggregate):
                clashes.add(f"{name} of {aggregate.__name__} and {found[name].__name__}")
    return clashes


def test_no_aggregate_hides_a_name_of_another() -> None:
    assert hidden(SQLStorage) == set()
    assert hidden(Reference) == set()


def test_reference_implements_the_whole_contract() -> None:
    reference: Storage = Reference()
    names = {name for name in dir(Storage) if not name.startswith("_")}
    assert {name for name in names if callable(getattr(reference, name, None))} == names
