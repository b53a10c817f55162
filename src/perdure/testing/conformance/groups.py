"""Test how a backend handles named sets of instances."""

import asyncio

import pytest

from perdure.errors import InstanceNotFoundError, LeaseLostError, LimitError
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new


async def test_members_are_listed_in_the_order_of_joining(storage: Storage) -> None:
    for name in ("c", "a", "b"):
        await new(storage, name)
        await storage.join_group(name, "g")
    assert await storage.get_group_members("g") == ["c", "a", "b"]
    assert await storage.get_group_members("g", limit=2) == ["c", "a"]
    await storage.join_group("c", "g")
    assert await storage.get_group_members("g") == ["c", "a", "b"]
    await storage.leave_group("c", "g")
    await storage.join_group("c", "g")
    assert await storage.get_group_members("g") == ["a", "b", "c"]


async def test_leaving_is_idempotent(storage: Storage) -> None:
    await new(storage, "a")
    for group in ("g", "h"):
        await storage.join_group("a", group)
    await storage.leave_group("a", "g")
    await storage.leave_group("a", "g")
    await storage.leave_group("a", "never")
    assert (await storage.get_group_members("g"), await storage.get_group_members("h")) == ([], ["a"])
    await storage.leave_all_groups("a")
    await storage.leave_all_groups("a")
    assert await storage.get_group_members("h") == []


@pytest.mark.pitfall(38)
async def test_concurrent_joins_and_leaves_succeed(storage: Storage, peer: Storage) -> None:
    for name in ("a", "b"):
        await new(storage, name)
    sides = [storage, peer] * 6
    await asyncio.gather(*(side.join_group(name, "g") for side in sides for name in ("a", "b")))
    assert sorted(await storage.get_group_members("g")) == ["a", "b"]
    await asyncio.gather(*(side.leave_group(name, "g") for side in sides for name in ("a", "b")))
    assert await storage.get_group_members("g") == []


@pytest.mark.pitfall(36)
async def test_group_names_are_compared_exactly(storage: Storage) -> None:
    await new(storage, "a")
    await storage.join_group("a", "Team")
    assert await storage.get_group_members("team") == []
    for name in ("", " g", "Team ", "g\n", "g" * 256):
        for call in (
            storage.join_group("a", name),
            storage.leave_group("a", name),
            storage.get_group_members(name),
            storage.join_group(name, "Team"),
        ):
            with pytest.raises(LimitError):
                await call
    assert await storage.get_group_members("Team") == ["a"]


async def test_an_unknown_instance_is_refused(storage: Storage) -> None:
    for call in (storage.join_group("nobody", "g"), storage.leave_group("nobody", "g"), storage.leave_all_groups("no")):
        with pytest.raises(InstanceNotFoundError):
            await call
    assert await storage.get_group_members("g") == []


@pytest.mark.pitfall(1)
async def test_lost_lease_cannot_change_a_membership(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "a", timeout_sec=10)
    await storage.join_group("a", "g", lease=lease)
    shift(storage, 11)
    assert await storage.try_acquire_lock("a", "w2", 10) is not None
    for call in (
        storage.join_group("a", "h", lease=lease),
        storage.leave_group("a", "g", lease=lease),
        storage.leave_all_groups("a", lease=lease),
    ):
        with pytest.raises(LeaseLostError):
            await call
    assert (await storage.get_group_members("g"), await storage.get_group_members("h")) == (["a"], [])


async def test_joining_is_rolled_back_with_the_callers_transaction(storage: Storage) -> None:
    await new(storage, "a")
    with pytest.raises(KeyError):
        async with storage.transaction():
            await storage.join_group("a", "g")
            raise KeyError
    assert await storage.get_group_members("g") == []


async def test_leaving_groups_keeps_the_finish_time(storage: Storage, shift: Shift) -> None:
    """Retention counts from that time, so leaving a group later must not change it."""
    await new(storage, "a")
    await storage.join_group("a", "g")
    await storage.update_instance_output("a", b"1")
    ended = await storage.get_instance("a")
    shift(storage, 100)
    await storage.leave_all_groups("a")
    assert await storage.get_instance("a") == ended
