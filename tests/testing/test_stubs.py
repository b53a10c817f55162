"""Stubs of activities: their outcomes, the calls that they record, and what they replace."""

import asyncio
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock

import pytest

from perdure import (
    App,
    EngineError,
    Retry,
    WorkflowCancelledError,
    WorkflowFailedError,
    activity,
    activity_info,
    connection,
    recur,
    wait_event,
    workflow,
)
from perdure.errors import StubError
from perdure.testing import TestApp
from perdure.testing.stubs import Call
from tests.support.storages import Database

MEMORY = "sqlite:///:memory:"
AT_ONCE = Retry(attempts=3, initial=0)


@dataclass
class Receipt:
    number: str
    amount: float


class Declined(Exception):
    """Raised by stubs."""


class Real(Exception):
    """Raised by activities that a test must not execute."""


@activity(name="stubs.charge", retry=AT_ONCE)
async def charge(order_id: str, amount: float = 9.5) -> Receipt:
    raise Real


@charge.compensation(retry=AT_ONCE)
async def refund(order_id: str, result: Receipt) -> None:
    raise Real


@activity(retry=AT_ONCE)
def pack(order_id: str) -> int:
    raise Real


@activity(retry=AT_ONCE)
async def mail(address: str) -> None:
    raise Real


@activity(transactional=True, retry=AT_ONCE)
async def book(order_id: str) -> int:
    raise Real


@activity(transactional=True, retry=AT_ONCE)
def book_in_thread(order_id: str) -> int:
    return int(connection().fetchval("SELECT 7"))


@activity(timeout=0.02, retry=Retry(attempts=1))
async def slow() -> str:
    raise Real


@workflow
async def buying(order_id: str) -> Receipt:
    return await charge(order_id)


@workflow
async def buying_many(orders: list[str]) -> list[Receipt]:
    return [await charge(order_id) for order_id in orders]


@workflow
async def packing(order_id: str) -> int:
    return await pack(order_id)


@workflow
async def failing_after_charge(order_id: str) -> None:
    await charge(order_id)
    raise Declined("no van")


@failing_after_charge.on_failure
async def apologise(order_id: str, error: str) -> None:
    raise Real


@workflow
async def careless(order_id: str) -> str:
    try:
        return (await charge(order_id)).number
    except Exception:
        return "hidden"


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App(MEMORY) as app:
        yield app


# Outcomes.


@pytest.mark.usefixtures("app")
async def test_workflow_gets_the_result_of_the_stub_and_the_call_is_recorded() -> None:
    with charge.stub(returns=Receipt("r-1", 9.5)) as stub:
        run = await buying.options(id="b-1").start("A-1")
        assert await run.result() == Receipt("r-1", 9.5)
    assert stub.calls == [Call({"order_id": "A-1", "amount": 9.5}, "b-1", "1:stubs.charge", 1)]


@pytest.mark.usefixtures("app")
async def test_activity_is_executed_again_after_the_block() -> None:
    with charge.stub(returns=Receipt("r-1", 9.5)):
        pass
    with pytest.raises(WorkflowFailedError) as caught:
        await buying("A-1")
    assert isinstance(caught.value.__cause__, Real)


@pytest.mark.usefixtures("app")
async def test_stub_without_arguments_returns_none() -> None:
    @workflow
    async def mailing() -> None:
        await mail("a@example.org")

    with mail.stub() as stub:
        await mailing()
    assert [call.arguments for call in stub.calls] == [{"address": "a@example.org"}]


@pytest.mark.parametrize("error", [Declined("no money"), Declined])
@pytest.mark.usefixtures("app")
async def test_exception_is_raised_by_every_attempt(error: Declined | type[Declined]) -> None:
    with charge.stub(raises=error) as stub:
        with pytest.raises(WorkflowFailedError) as caught:
            await buying("A-1")
        assert isinstance(caught.value.__cause__, Declined)
    assert [call.attempt for call in stub.calls] == [1, 2, 3]


@pytest.mark.usefixtures("app")
async def test_list_of_exceptions_fails_the_first_attempts_of_each_call() -> None:
    receipt = Receipt("r-1", 9.5)
    with charge.stub(raises=[Declined("busy"), TimeoutError], returns=receipt) as stub:
        assert await buying_many(["A-1", "A-2"]) == [receipt, receipt]
    assert [(call.arguments["order_id"], call.attempt) for call in stub.calls] == [
        ("A-1", 1),
        ("A-1", 2),
        ("A-1", 3),
        ("A-2", 1),
        ("A-2", 2),
        ("A-2", 3),
    ]


@pytest.mark.usefixtures("app")
async def test_calls_get_each_outcome_in_turn_and_all_attempts_of_a_call_the_same_one() -> None:
    receipts = [Receipt("r-1", 1.0), Receipt("r-2", 2.0)]
    with charge.stub(raises=[Declined("busy")], each=receipts):
        assert await buying_many(["A-1", "A-2"]) == receipts
    failing = charge.stub(each=[receipts[0], Declined("no money")])
    with failing as stub, pytest.raises(WorkflowFailedError, match="no money"):
        await buying_many(["A-1", "A-2"])
    assert [call.attempt for call in stub.calls] == [1, 1, 2, 3]


@pytest.mark.usefixtures("app")
async def test_attempt_that_is_executed_again_after_a_recurrence_is_another_call() -> None:
    @workflow
    async def counting(left: int) -> str:
        receipt = await charge("A-1")
        if left:
            recur(left - 1)
        return receipt.number

    with charge.stub(each=[Receipt("r-1", 1.0), Receipt("r-2", 2.0)]):
        assert await (await counting.start(1)).result() == "r-2"


@pytest.mark.usefixtures("app")
async def test_call_without_an_outcome_fails_the_run_at_once_and_the_block() -> None:
    message = r"charge.stub\(each=\) has 1 outcomes, and 'stubs.charge' was called 2 times"
    with pytest.raises(StubError, match=message), charge.stub(each=[Receipt("r-1", 1.0)]) as stub:
        assert await careless("A-1") == "r-1"
        assert await careless("A-2") == "hidden"
    assert [call.attempt for call in stub.calls] == [1, 1]


@pytest.mark.usefixtures("app")
async def test_mistake_is_a_note_of_another_error_of_the_block() -> None:
    with pytest.raises(AssertionError, match="something else") as caught, charge.stub(each=[]):
        assert await careless("A-1") == "something else", "something else"
    assert any("charge.stub(each=) has 0 outcomes" in note for note in caught.value.__notes__)


@pytest.mark.usefixtures("app")
async def test_function_replaces_an_async_activity_and_knows_its_attempt() -> None:
    async def declined_once(order_id: str, amount: float = 0) -> Receipt:
        if activity_info().attempt == 1:
            raise Declined("busy")
        return Receipt(order_id, 1.0)

    with charge.stub(using=declined_once):
        assert await buying("A-1") == Receipt("A-1", 1.0)
    with charge.stub(using=lambda order_id, amount=0: Receipt(order_id, 2.0)):
        assert await buying("A-1") == Receipt("A-1", 2.0)
    mock = AsyncMock(return_value=Receipt("mock", 3.0))
    with charge.stub(using=mock):
        assert await buying("A-1") == Receipt("mock", 3.0)
    mock.assert_awaited_once_with("A-1")


@pytest.mark.usefixtures("app")
async def test_plain_function_replaces_a_plain_activity_in_its_thread() -> None:
    threads: list[threading.Thread] = []

    def packed(order_id: str) -> int:
        threads.append(threading.current_thread())
        return activity_info().attempt

    with pack.stub(using=packed):
        assert await packing("A-1") == 1
    assert threads[0] is not threading.main_thread()

    async def packed_async(order_id: str) -> int:
        await asyncio.sleep(0)
        return 5

    with pack.stub(using=packed_async):
        assert await packing("A-1") == 5


@pytest.mark.usefixtures("app")
async def test_cancelled_run_of_a_stub_that_hangs_ends() -> None:
    began = asyncio.Event()

    @workflow
    async def mailing_forever() -> None:
        await mail("a@example.org")

    async def hang(address: str) -> None:
        began.set()
        await asyncio.Event().wait()

    with mail.stub(using=hang):
        run = await mailing_forever.start()
        await began.wait()
        await run.cancel("enough")
        with pytest.raises(WorkflowCancelledError):
            await run.result(timeout=20)


# Types.


def test_result_of_another_type_is_refused_where_the_stub_is_made() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"charge.stub\(returns=\) got 3: the result of charge\(\): .*Receipt"):
        charge.stub(returns=wrong)
    with pytest.raises(TypeError, match=r"charge.stub\(each=\) has 3: "):
        charge.stub(each=[Receipt("r", 1.0), wrong])
    nothing: Any = charge
    with pytest.raises(TypeError, match=r"charge.stub\(\) needs returns=, each=, using= or raises=: "):
        nothing.stub()


@pytest.mark.usefixtures("app")
async def test_function_with_a_result_of_another_type_fails_the_run_at_once_and_the_block() -> None:
    wrong: Any = lambda order_id, amount=0: "text"  # noqa: E731
    message = r"charge.stub\(using=\) returned 'text': the result of charge\(\)"
    with pytest.raises(StubError, match=message), charge.stub(using=wrong) as stub:
        assert await careless("A-1") == "hidden"
    assert len(stub.calls) == 1


@pytest.mark.usefixtures("app")
async def test_function_with_other_parameters_fails_the_run_at_once_and_the_block() -> None:
    wrong: Any = lambda: Receipt("r", 1.0)  # noqa: E731
    message = r"charge.stub\(using=\) cannot be called as charge\(\) is: too many"
    with pytest.raises(StubError, match=message), charge.stub(using=wrong):
        assert await careless("A-1") == "hidden"


def test_wrong_arguments_are_refused_where_the_stub_is_made() -> None:
    stub: Any = charge.stub
    receipt = Receipt("r", 1.0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"returns": receipt, "each": []}, r"charge.stub\(\) got returns= and each=: use one of them"),
        ({"returns": receipt, "raises": Declined()}, r"got returns= and an exception .*raises=\[…\]"),
        ({"raises": "no money"}, r"charge.stub\(raises=\) must be an exception, or a list of exceptions"),
        ({"returns": receipt, "raises": ["no money"]}, r"charge.stub\(raises=\) must be"),
        ({"each": receipt}, r"charge.stub\(each=\) must be a list of results and exceptions"),
        ({"using": receipt}, r"charge.stub\(using=\) must be a function"),
        ({"using": charge}, r"charge.stub\(using=\) got the stubbed activity itself: use charge.function"),
        ({"using": charge.options(timeout=1)}, "use charge.function"),
        ({"returns": receipt, "run": 3}, r"charge.stub\(run=\) must be the id of a run"),
        ({"returns": receipt, "delay": "1"}, r"charge.stub\(delay=\) must be a number of seconds"),
        ({"return_value": receipt}, "unexpected keyword argument 'return_value'"),
    ]
    for given, message in wrong:
        with pytest.raises(TypeError, match=message):
            stub(**given)

    async def booked(order_id: str) -> int:
        return 1

    with pytest.raises(TypeError, match="must be a plain function"):
        book_in_thread.stub(using=booked)


# Time.


@pytest.mark.usefixtures("app")
async def test_delay_above_the_timeout_of_the_activity_times_out() -> None:
    @workflow
    async def waiting() -> str:
        return await slow()

    with slow.stub(returns="late", delay=60) as stub:
        with pytest.raises(WorkflowFailedError) as caught:
            await waiting()
        assert isinstance(caught.value.__cause__, TimeoutError)
    assert len(stub.calls) == 1


@pytest.mark.usefixtures("app")
async def test_delay_passes_before_the_outcome() -> None:
    loop = asyncio.get_running_loop()
    with charge.stub(returns=Receipt("r", 1.0), delay=0.05):
        began = loop.time()
        await buying("A-1")
    assert loop.time() - began >= 0.05


# What is replaced.


@pytest.mark.usefixtures("app")
async def test_activity_with_options_is_replaced_as_well() -> None:
    @workflow
    async def buying_quickly() -> str:
        return (await charge.options(timeout=5, retry=AT_ONCE)("A-1", amount=1.0)).number

    with charge.options(timeout=7).stub(returns=Receipt("r-1", 1.0)) as stub:
        assert await buying_quickly() == "r-1"
    assert stub.called_with("A-1", 1.0)


@pytest.mark.usefixtures("app")
async def test_compensation_and_failure_handler_are_replaced() -> None:
    receipt = Receipt("r-1", 1.0)
    with (
        charge.stub(returns=receipt),
        refund.stub(raises=[Declined("busy")]) as undo,
        apologise.stub() as sorry,
        pytest.raises(WorkflowFailedError, match="no van"),
    ):
        await failing_after_charge("A-1")
    assert [call.arguments for call in undo.calls] == [{"order_id": "A-1", "result": receipt}] * 2
    assert [call.attempt for call in undo.calls] == [1, 2]
    assert undo.calls[0].step == "undo:1:stubs.charge"
    assert sorry.called_with(order_id="A-1", error="no van")


async def test_transactional_activity_is_replaced_inside_its_transaction(database: Database) -> None:
    @workflow
    async def booking(order_id: str) -> int:
        return await book(order_id)

    async def booked(order_id: str) -> int:
        return 3 if connection() is not None else 0

    async with App(database.url):
        with book.stub(returns=4):
            assert await booking("A-1") == 4
        with book.stub(using=booked):
            assert await booking("A-2") == 3


async def test_plain_transactional_activity_can_be_spied_on(database: Database) -> None:
    @workflow
    async def booking_in_thread(order_id: str) -> int:
        return await book_in_thread(order_id)

    async with App(database.url):
        with book_in_thread.stub(using=book_in_thread.function) as stub:
            assert await booking_in_thread("A-1") == 7
    assert stub.called_with("A-1")


@pytest.mark.usefixtures("app")
async def test_run_filter_selects_runs_by_id_or_by_a_function() -> None:
    one, other = Receipt("one", 1.0), Receipt("other", 2.0)
    with (
        charge.stub(returns=other, run=lambda info: info.workflow_name == "buying"),
        charge.stub(returns=one, run="only") as stub,
    ):
        assert await (await buying.options(id="only").start("A-1")).result() == one
        assert await (await buying.options(id="another").start("A-1")).result() == other
        with pytest.raises(Real):
            await charge("A-1")
    assert [call.run_id for call in stub.calls] == ["only"]


@pytest.mark.usefixtures("app")
async def test_last_stub_that_was_entered_replaces_the_earlier_ones() -> None:
    outer, inner = Receipt("outer", 1.0), Receipt("inner", 2.0)
    with charge.stub(returns=outer) as unused:
        with charge.stub(returns=inner):
            assert await buying("A-1") == inner
        assert unused.calls == []
        assert await buying("A-1") == outer


@pytest.mark.usefixtures("app")
async def test_replay_does_not_call_the_stub_again() -> None:
    @workflow
    async def patient() -> str:
        receipt = await charge("A-1")
        await wait_event("go")
        return receipt.number

    async with App(MEMORY, workflows=[patient], max_cached_runs=0) as app:
        with charge.stub(each=[Receipt("r-1", 1.0)]) as stub:
            run = await patient.start()
            while not (await run.info()).waiting_for:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await app.send_event("go", None)
            assert await run.result() == "r-1"
    assert len(stub.calls) == 1


async def test_direct_call_is_replaced_with_and_without_an_app() -> None:
    receipt = Receipt("r-1", 1.0)
    with charge.stub(each=[receipt, receipt, receipt]) as stub:
        assert await charge("A-1") == receipt
        async with App(MEMORY):
            assert await charge("A-2", amount=3.0) == receipt
            assert await charge.options(timeout=1)("A-3") == receipt
    assert stub.calls[1] == Call({"order_id": "A-2", "amount": 3.0}, None, None, 1)
    with pytest.raises(TypeError), charge.stub(returns=receipt):
        await charge()  # type: ignore[call-arg]


@pytest.mark.usefixtures("app")
async def test_direct_call_in_an_activity_is_replaced() -> None:
    @activity
    async def paying(order_id: str) -> str:
        return (await charge(order_id)).number + (await charge(order_id)).number

    @workflow
    async def buying_indirectly() -> str:
        return await paying("A-1")

    with charge.stub(each=[Receipt("r-1", 1.0), Receipt("r-2", 1.0)]) as stub:
        run = await buying_indirectly.options(id="i").start()
        assert await run.result() == "r-1r-2"
    assert {(call.run_id, call.step) for call in stub.calls} == {("i", "1:paying")}


# Misuse, and what is shown.


def test_stub_that_is_never_entered_warns() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mail.stub()
    assert "mail.stub(…) was never entered, so it replaced nothing" in str(caught[0].message)


def test_stub_is_entered_once_and_has_calls_only_then() -> None:
    stub = mail.stub()
    with pytest.raises(EngineError, match="was not entered"):
        stub.calls  # noqa: B018
    with stub, pytest.raises(EngineError, match="can be entered only once"):
        stub.__enter__()
    assert stub.calls == []


@pytest.mark.usefixtures("app")
async def test_calls_are_shown_by_the_stub() -> None:
    with mail.stub() as stub:
        await mail("a@example.org")
        assert repr(stub) == "<stub of mail, calls: 1\n  (address='a@example.org')>"
        for _ in range(30):
            await mail("b@example.org")
    assert repr(stub).startswith("<stub of mail, calls: 31\n")
    assert repr(stub).count("\n") == 21
    with charge.stub(returns=Receipt("r-1", 9.5)) as charged:
        await (await buying.options(id="b-1").start("A-1")).result()
    assert "(order_id='A-1', amount=9.5) in run b-1, step 1:stubs.charge, attempt 1" in repr(charged)


def test_programs_do_not_import_the_testing_kit() -> None:
    program = "import sys, perdure; print([name for name in sys.modules if name.startswith('perdure.testing')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_stub_without_a_delay_takes_no_time() -> None:
    @workflow
    async def buying_in_time() -> str:
        return (await charge.options(timeout=0.5)("A-1")).number

    async with TestApp():  # by its clock, so a slow machine is no reason for a timeout
        with charge.stub(returns=Receipt("r", 1.0)):
            assert await (await buying_in_time.start()).result() == "r"
