"""All errors have one base class."""

import pytest

from perdure import App, EngineError, PerdureError, RunEvicted, errors
from perdure.engine.api.run_info import ErrorInfo
from tests.support.storages import Database


@pytest.mark.behaviour("errors")
def test_engine_errors_share_one_base_class() -> None:
    named = """NonDeterminismError ActivityError WorkflowFailedError WorkflowCancelledError RunNotFoundError
    NotDurableError OutsideWorkflowError TransactionTooLongError"""
    for name in named.split():
        assert issubclass(getattr(errors, name), EngineError)
    assert issubclass(EngineError, errors.PerdureError)
    assert not issubclass(RunEvicted, Exception)


def test_error_info_is_shown_with_its_message_if_it_has_one() -> None:
    assert str(ErrorInfo("builtins.ValueError", "no money")) == "builtins.ValueError: no money"
    assert str(ErrorInfo("builtins.ValueError", "")) == "builtins.ValueError"


async def test_error_of_an_unknown_run_is_a_perdure_error(memory: Database) -> None:
    async with App(memory.url) as app:
        with pytest.raises(PerdureError):
            await app.get("nobody").info()
