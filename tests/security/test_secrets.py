"""A password is in no log, error, repr or traceback, whatever goes wrong."""

import asyncio
import logging
import pickle
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import quote

import pytest

from perdure import App, Client, workflow
from perdure.database.backends.server import retries
from perdure.database.dialects import new_driver
from perdure.errors import ConfigurationError, DatabaseUnavailableError, StorageError
from perdure.storage.stores import MySQLStorage, PostgresStorage, open_storage
from perdure.testing import check_upgrade, export_histories, export_history
from perdure.testing.servers import MySQLServer, PostgresServer, Server
from tests.security import secret_search
from tests.support.storages import storage_of

WORD = "Nachtfalter"
PASSWORD = f"p@ss:/{WORD}?#%é"
ENCODED = quote(PASSWORD, safe="")
SHORT = timedelta(seconds=1)


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def guarded(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    """A server with a user `guarded` who has the password, and its kind."""
    kind = request.param
    with PostgresServer() if kind == "postgresql" else MySQLServer() as server:
        asyncio.run(lock(kind, server))
        if kind == "postgresql":
            rules = server.home / "data" / "pg_hba.conf"
            rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
            server.restart()
        yield kind, server


async def lock(kind: str, server: Server) -> None:
    storage = open_storage(server.url)
    await storage._backend.open()
    if kind == "postgresql":
        statements = [f"CREATE ROLE guarded SUPERUSER LOGIN PASSWORD '{PASSWORD}'"]
    else:
        user = "guarded@'127.0.0.1'"
        statements = [f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'", f"GRANT ALL ON test.* TO {user}"]
    for statement in statements:
        await storage.db().execute(statement)
    await storage.close()


def url_of(kind: str, server: Server, *, password: str = ENCODED, more: str = "") -> str:
    database = "postgres" if kind == "postgresql" else "test"
    return f"{kind}://guarded:{password}@127.0.0.1:{server.port}/{database}{more}"


def is_kept(error: BaseException) -> None:
    assert secret_search.in_error(error, WORD) == []
    assert secret_search.in_error(error, "Nacht") == []


SCHEMES = ("postgresql", "postgres", "mysql", "mariadb")
WRONG = [
    "{0}://guarded:{1}@h/d?pool_size=none",
    "{0}://guarded:{1}@h/d?pool_size=0&ssl=no",
    "{0}://guarded:{1}@h/d?passwd={1}",
    "{0}://guarded:{1}@h/d?{1}",
    "{0}://guarded@h/d?pool_size={1}",
    "{0}://guarded@h/d?pool_timeout={1}&connect_timeout={1}",
    "{0}://guarded:{1}@h:99999999/d",
    "{0}://guarded:{1}@h:port/d",
    "{0}://guarded:{1}@one:1,two:x/d",
    "{0}://guarded:{1}@[::1/d",
    "{0}://guarded:{1}/d",
    "{0}://guarded:{1}",
    "{0}://h:{1}@/d?nonsense=1",
    "{0}:/guarded:{1}@h/d",
    "{0}:guarded:{1}@h/d",
    "{0}://guarded:{2}@h/d",
    "{0}://guarded:{2}@h/d?pool_size=none",
    "{0}://guarded:p?{3}@h/d",
    "{0}://guarded:p/{3}@h/d",
]
ALIEN = [
    "oracle://guarded:{1}@h/d",
    "{0}+psycopg://guarded:{1}@h/d",
    " {0}://guarded:{1}@h/d",
    "//guarded:{1}@h/d",
    "guarded:{1}@h/d",
    "{1}@h:5432/d",
    "{3}",
    "{3}:{3}",
    "",
    "sqlite://guarded:{1}@h/file.db",
    "sqlite://guarded:{2}@h/file.db",
    "sqlite://\u2100{3}@h/file.db",
    "sqlite://[{3}/file.db",
    "sqlite:///file.db?key={3}",
    "sqlite:///file.db?{3}",
]


@pytest.mark.parametrize("form", [*WRONG, *ALIEN])
async def test_error_for_an_invalid_url_hides_the_password(form: str) -> None:
    for scheme in SCHEMES if "{0}" in form else ("",):
        url = form.format(scheme, ENCODED, PASSWORD, WORD)
        with pytest.raises(ConfigurationError) as refused:
            open_storage(url)
        is_kept(refused.value)
        for reading in (check_upgrade(url), export_histories(url, "h"), export_history("a", "h", database=url)):
            with pytest.raises(ConfigurationError) as refused:
                await reading
            is_kept(refused.value)
        for kind in (App, Client):
            with pytest.raises(ConfigurationError) as refused:
                async with kind(url):
                    pass
            is_kept(refused.value)
        if form in WRONG:
            with pytest.raises(ConfigurationError) as refused:
                PostgresStorage(url) if scheme.startswith("p") else MySQLStorage(url)
            is_kept(refused.value)
        elif not form.startswith("sqlite"):
            with pytest.raises(ConfigurationError) as refused:
                new_driver(url)
            is_kept(refused.value)


def test_error_for_an_invalid_argument_hides_the_password() -> None:
    with pytest.raises(TypeError, match="lease") as wrong:
        App(f"postgresql://guarded:{ENCODED}@h/d", lease="15")  # type: ignore[arg-type]
    is_kept(wrong.value)


REFUSED = {
    "postgresql": [
        ("guarded:{0}x@{1}/postgres", ConfigurationError),
        ("guarded@{1}/postgres?password={0}x", ConfigurationError),
        ("{0}:{0}@{1}/postgres", ConfigurationError),
        ("guarded:{0}@{1}/missing", ConfigurationError),
        ("guarded:{0}@{1}/postgres?sslmode=require", DatabaseUnavailableError),
        ("guarded:{0}@{1}/postgres?sslmode=never&sslpassword={0}", ConfigurationError),
        ("guarded:{0}@{1}/postgres?options=-c%20colour%3D{0}", ConfigurationError),
        ("guarded:{0}@{1}/postgres?search_path=a&target_session_attrs=standby", DatabaseUnavailableError),
        ("guarded:{0}@127.0.0.1:1/postgres", DatabaseUnavailableError),
        ("guarded:{0}@127.0.0.1:1,127.0.0.1:2/postgres", DatabaseUnavailableError),
        ("guarded:{0}x@127.0.0.1:1,{1}/postgres", DatabaseUnavailableError),
        ("guarded:{0}@nowhere.invalid/postgres", DatabaseUnavailableError),
    ],
    "mysql": [
        ("guarded:{0}x@{1}/test", ConfigurationError),
        ("nobody:{0}@{1}/test", ConfigurationError),
        ("guarded:{0}@{1}/missing", ConfigurationError),
        ("guarded:{0}@127.0.0.1:1/test", DatabaseUnavailableError),
        ("guarded:{0}@127.0.0.1:1,127.0.0.1:2/test", DatabaseUnavailableError),
        ("guarded:{0}x@127.0.0.1:1,{1}/test", ConfigurationError),
        ("guarded:{0}@nowhere.invalid/test", DatabaseUnavailableError),
        ("guarded:{0}@h/test?unix_socket=/nowhere", DatabaseUnavailableError),
    ],
}


async def test_rejected_login_hides_the_password(guarded: tuple[str, Server], caplog: pytest.LogCaptureFixture) -> None:
    kind, server = guarded
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    for form, expected in REFUSED[kind]:
        url = f"{kind}://{form.format(ENCODED, f'127.0.0.1:{server.port}')}"
        with pytest.raises(expected) as refused:
            async with App(url) as app:
                raise AssertionError(f"{form} got in as {app.worker_id}")
        if not form.startswith("{0}"):  # there the name is the word, and servers name who they refuse
            is_kept(refused.value)
    assert secret_search.in_records(caplog.records, f":{ENCODED}") == []


@workflow(name="secrets.short")
async def short(n: int) -> int:
    return n + 1


async def until_logged(caplog: pytest.LogCaptureFixture, message: str) -> None:
    logged = asyncio.Event()
    loop = asyncio.get_running_loop()

    class MessageWatcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if message in record.getMessage():
                loop.call_soon_threadsafe(logged.set)

    watcher = MessageWatcher()
    logging.getLogger("perdure").addHandler(watcher)
    try:
        if not any(message in each for each in caplog.messages):
            await logged.wait()
    finally:
        logging.getLogger("perdure").removeHandler(watcher)


async def test_server_crash_hides_the_password(
    guarded: tuple[str, Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, server = guarded
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(retries, "RETRY_SEC", 0.2)
    url = url_of(kind, server, more="?pool_size=3")
    errors: list[BaseException] = []
    try:
        async with App(url, lease=SHORT, drain_timeout=SHORT) as app, Client(url) as client:
            assert await (await short.start(1)).result() == 2
            for thing in (app, client, app._storage, storage_of(app)._backend, app._worker):
                assert secret_search.in_object(thing, WORD) == []
            server.kill()
            for call in (app.info("x"), client.info("x"), app.send_event("t", 1), short.start(2)):
                with pytest.raises(StorageError) as failed:
                    await call
                errors.append(failed.value)
            async with asyncio.timeout(30):
                await until_logged(caplog, "the database is unavailable")
    except StorageError as error:
        errors.append(error)
    finally:
        server.start()
    assert len(errors) >= 4
    for each in errors:
        is_kept(each)
    assert secret_search.in_records(caplog.records, WORD) == []


def test_reprs_hide_the_password_and_the_url_still_works(guarded: tuple[str, Server]) -> None:
    kind, server = guarded
    url = url_of(kind, server)
    for thing in (App(url), Client(url), open_storage(url), open_storage(url)._backend):
        assert secret_search.in_object(thing, WORD) == []
        assert WORD not in repr(vars(thing)) + str(thing)
    assert App(url).url == url
    assert WORD in str(App(url).url)
    assert "***" in repr(App(url).url)


def test_pickling_error_hides_the_password() -> None:
    storage = open_storage(f"postgresql://guarded:{ENCODED}@h/d")
    for thing in (storage, storage._backend):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as failed:
            pickle.dumps(thing)
        assert WORD not in repr(failed.value)


def test_checks_of_this_file_find_a_shown_password() -> None:
    """The checks of this file find a marker where there is one."""
    with pytest.raises(ValueError, match="badly formed") as failed:
        uuid.UUID(WORD * 3)
    assert secret_search.in_error(failed.value, WORD)
    try:
        int(WORD)
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "x", 1, "text", (), sys.exc_info())
        assert secret_search.in_records([record], WORD)
    app = App(f"postgresql://guarded:{ENCODED}@h/d")
    app.worker_id = WORD
    assert secret_search.in_object(app, WORD)
