"""The rooms share one object, so no room may hide what another one has."""

from perdure.storage.contract import Storage
from perdure.storage.stores import Rooms
from perdure.testing.reference import Reference


def hidden(kind: type) -> set[str]:
    """Names that two classes define of which neither is built on the other."""
    found: dict[str, type] = {}
    clashes = set()
    for room in kind.__mro__[:-1]:
        for name in vars(room):
            if name.startswith("__"):
                continue
            if not issubclass(found.setdefault(name, room), room):
                clashes.add(f"{name} of {room.__name__} and {found[name].__name__}")
    return clashes


def test_no_room_hides_what_another_one_has() -> None:
    assert hidden(Rooms) == set()
    assert hidden(Reference) == set()


def test_the_reference_has_all_that_a_storage_has() -> None:
    reference: Storage = Reference()
    names = {name for name in dir(Storage) if not name.startswith("_")}
    assert {name for name in names if callable(getattr(reference, name, None))} == names
