"""All errors have one base class."""

import pytest

from perdure import App, EngineError, PerdureError, RunEvicted, errors
from tests.support.storages import Database


@pytest.mark.behaviour("errors")
def test_engine_errors_share_one_base_class() -> None:
    named = """NonDeterminismError ActivityError WorkflowFailedError WorkflowCancelledError RunNotFoundError
    NotDurableError OutsideWorkflowError TransactionTooLongError"""
    for name in named.split():
        assert issubclass(getattr(errors, name), EngineError)
    assert issubclass(EngineError, errors.PerdureError)
    assert not issubclass(RunEvicted, Exception)


async def test_error_of_an_unknown_run_is_a_perdure_error(memory: Database) -> None:
    async with App(memory.url) as app:
        with pytest.raises(PerdureError):
            await app.get("nobody").info()
