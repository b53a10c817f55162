"""docs/errors: every code has its page, which states its class, status and exit code, and whose examples are true."""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import App, errors, workflow
from perdure.cli.exits import problem_of as cli_problem_of
from perdure.error_pages import ADDRESS, NO_PAGE, page_address
from perdure.http import http_app
from perdure.http.problems import CODES, STATUSES
from scripts.docs.error_codes import all_codes, error_codes
from tests.docs.console import Session
from tests.docs.marks import ROOT

FOLDER = ROOT / "docs" / "errors"
INDEX = (FOLDER / "index.md").read_text("utf-8")
PAGES = {file.stem: file.read_text("utf-8") for file in FOLDER.glob("*.md") if file.name != "index.md"}
TOKEN = "a-token-of-the-shop"
_REQUEST = re.compile(r"^```http\n(.*?)^```\n\n```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WITH_REQUESTS = sorted(code for code, text in PAGES.items() if _REQUEST.search(text))
WITH_COMMANDS = sorted(code for code, text in PAGES.items() if "```console" in text)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert sorted(PAGES) == sorted(all_codes())


@pytest.mark.parametrize("code", sorted(all_codes()))
def test_address_of_a_code_is_that_of_its_page(code: str) -> None:
    path = page_address(code).removeprefix("https://github.com/perdure/perdure/blob/main/")
    assert (ROOT / path).is_file()
    assert ADDRESS.format(code=code) == page_address(code)


@pytest.mark.parametrize("code", ["http.429", "shop.sold_out", "engine.a.b", "", "../README"])
def test_code_of_others_has_no_page(code: str) -> None:
    assert page_address(code) == NO_PAGE


@pytest.mark.parametrize("code", sorted(PAGES))
def test_page_has_its_title_causes_and_remedies(code: str) -> None:
    headings = re.findall(
        r"^#+ .+$", re.sub(r"^```.*?^```$", "", PAGES[code], flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    assert headings[:3] == [f"# {code}", "## Causes", "## What to do"]
    assert headings[3:] in ([], ["## Example"])
    assert f"| [`{code}`]({code}.md) |" in INDEX


@pytest.mark.parametrize(("name", "code"), sorted(error_codes().items()))
def test_page_and_index_state_class_status_and_exit_code(name: str, code: str) -> None:
    kind: type[errors.PerdureError] = getattr(errors, name)
    status = next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)
    exit_code = cli_problem_of(kind("x")).exit_code
    assert f"`{name}` · HTTP status {status} · exit code {exit_code}\n" in PAGES[code]
    assert f"| [`{code}`]({code}.md) | `{name}` | {status} | {exit_code} |" in INDEX


@pytest.mark.parametrize(("status", "code"), sorted(CODES.items()))
def test_page_of_the_http_api_states_its_status(status: int, code: str) -> None:
    assert f"\nHTTP status {status}\n" in PAGES[code]


def _settings(code: str) -> Mapping[str, Any]:
    def fail(_: object) -> None:
        raise LookupError("the users cannot be read")

    special: dict[str, Mapping[str, Any]] = {
        "http.forbidden": {"auth": lambda request: None},
        "http.internal": {"auth": fail},
        "http.signature": {"token": TOKEN, "webhook_keys": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
        "http.too_large": {"token": TOKEN, "max_body": 20},
    }
    return special.get(code, {"token": TOKEN})


async def _answer(code: str, request: str) -> httpx.Response:
    head, _, body = request.partition("\n\n")
    line, *headers = head.strip().splitlines()
    method, path = line.split(" ")
    async with App("sqlite:///:memory:") as app:
        transport = httpx.ASGITransport(http_app(app, **_settings(code)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            given = dict(each.split(": ", 1) for each in headers)
            return await http.request(method, path, headers=given, content=body.strip())


def test_pages_of_the_http_api_have_examples() -> None:
    without = {"http.conflict", "http.timeout", "http.unavailable"}  # they need a state that a request does not make
    assert {code for code in PAGES if code.startswith("http.")} - set(WITH_REQUESTS) == without


@pytest.mark.parametrize("code", WITH_REQUESTS)
async def test_request_of_a_page_gets_the_response_that_it_shows(code: str) -> None:
    @workflow(name="order")
    async def order(item: str, amount: int) -> None: ...

    for request, response in _REQUEST.findall(PAGES[code]):
        answer = await _answer(code, request)
        title = {"title": HTTPStatus(answer.status_code).phrase}  # depends on the version of Python
        assert answer.json() == json.loads(response) | title
        assert answer.json() == {**answer.json(), "code": code, "type": page_address(code)}


@pytest.mark.parametrize("code", WITH_COMMANDS)
def test_commands_of_a_page_print_what_it_shows(code: str, tmp_path: Path) -> None:
    with Session(tmp_path) as terminal:
        terminal.play(PAGES[code])
