"""The owner of a lease names the worker and the tries without progress."""

import pytest

from perdure.engine.worker.owners import is_backed_off, is_dead, owner_of, tries_of, worker_of
from perdure.storage.stuck import BACKED_OFF


@pytest.mark.parametrize("worker_id", ["host:1:ab", "pod#2", "pod#2:x", "#"])
def test_an_owner_names_its_worker_and_the_tries_before_it(worker_id: str) -> None:
    owner = owner_of(worker_id, 3)
    assert (worker_of(owner), tries_of(owner)) == (worker_id, 3)
    assert is_dead(owner)
    assert not is_backed_off(owner)


def test_a_run_in_back_off_has_tries_but_no_worker_that_died() -> None:
    owner = f"{BACKED_OFF}#4"
    assert tries_of(owner) == 4
    assert is_backed_off(owner)
    assert not is_dead(owner)


@pytest.mark.parametrize("owner", ["w", "3", "w#", "w#x"])
def test_an_owner_without_a_number_has_no_tries(owner: str) -> None:
    assert tries_of(owner) == 0


def test_a_run_without_a_lease_has_no_owner() -> None:
    assert tries_of(None) == 0
    assert not is_dead(None)
    assert worker_of("w") == "w"
