"""Requests that schemathesis makes from the API's own description, in short; `make fuzz-http` sends many more."""

from pathlib import Path

from tests.http.fuzzing import Fuzz, served


def test_made_up_requests_cause_no_server_error_and_are_answered_as_described(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path}/fuzz.db") as url:
        fuzz = Fuzz(url)
        fuzz.send(4)
    assert fuzz.count > 150
    assert {200, 202, 404, 422} <= set(fuzz.statuses)
    assert len(fuzz.operations) > 20
