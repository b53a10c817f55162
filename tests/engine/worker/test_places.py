"""Places for activities: taken in order, and never lost."""

import asyncio

from perdure.engine.worker.places import Places


async def test_places_are_granted_in_order() -> None:
    places, order = Places(1), list[int]()

    async def work(number: int) -> None:
        await places.take()
        order.append(number)
        await asyncio.sleep(0)
        places.release()

    await asyncio.gather(*(work(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert places.free == 1


async def test_cancelled_waiter_gives_its_place_back() -> None:
    places = Places(1)
    await places.take()
    first, second = (asyncio.create_task(places.take()) for _ in range(2))
    await asyncio.sleep(0)
    places.release()
    first.cancel()  # at the moment at which it was granted the place
    await second
    assert first.cancelled()
    assert places.free == 0
    third = asyncio.create_task(places.take())
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([third])
    places.release()
    assert places.free == 1
