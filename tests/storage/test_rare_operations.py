"""Operations that follow a lost answer or a race, each called by itself."""

from perdure.database.operation import Work
from perdure.model.records import ChannelMode, ChannelWait, OutboxEvent
from perdure.storage import channels, outbox
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased


async def test_message_whose_answer_was_lost_is_found_by_its_own_id(storage: SQLStorage) -> None:
    number = await storage.publish_to_channel("c", b"{}")
    (message,) = await storage.get_pending_channel_messages("c")
    assert await storage._read(channels._named, {"message_id": message.message_id}) == number
    assert await storage._read(channels._named, {"message_id": "another"}) is None


async def test_event_whose_answer_was_lost_is_requeued_if_it_is_not_parked(storage: SQLStorage) -> None:
    await storage.add_outbox_event(OutboxEvent("e", "t", "s", b"{}"))
    assert await storage._read(outbox._requeued, "e") is True
    await storage.mark_outbox_event_failed("e")
    assert await storage._read(outbox._requeued, "e") is None
    assert await storage._read(outbox._requeued, "deleted") is None


async def test_channel_to_which_several_instances_subscribed_meanwhile_keeps_their_paths(storage: SQLStorage) -> None:
    unused = ["c"]  # when a clean-up looked
    for id in ("a", "b"):
        lease = await leased(storage, id)
        await storage.subscribe_to_channel(id, "c", ChannelMode.BROADCAST, lease=lease)
        await storage.suspend(lease, [ChannelWait("c", "1:receive", where={"n": 1})])
    paths = "SELECT count(*) FROM perdure_match_paths"
    stored = await storage.db().fetchval(paths)
    await storage._run(Work(lambda: channels._forget(0, 10, unused)))
    assert await storage.db().fetchval(paths) == stored > 0
