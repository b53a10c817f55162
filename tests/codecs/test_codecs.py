"""Each codec and pipeline without a database: round trips, wrong keys, damaged data, limits and settings."""

import json
import logging
import os
import traceback
import zlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import App
from perdure.codecs import Compressed, Encoded, Encrypted, FileBlobs, Offloaded, new_key
from perdure.codecs.pipeline import Pipeline
from perdure.engine.history import records
from perdure.engine.history.codec import encode
from perdure.errors import CodecError, ConfigurationError, LimitError
from perdure.model import envelopes
from perdure.model.envelopes import MARK, PREFIX, Envelope, Tag, Unreadable, unreadable
from perdure.storage.encoding.fields import PLAIN_TYPES

PLACE = "run r-1/input"
KEY = new_key()
MEMORY = "sqlite:///:memory:"


class Reversed:
    """A codec of a user."""

    name = "reversed"

    def encode(self, data: bytes, place: str) -> Encoded:
        return Encoded(data[::-1], "v1")

    def decode(self, encoded: Encoded, place: str) -> bytes:
        return encoded.data[::-1]


class Broken(Reversed):
    """A codec whose service does not answer."""

    def encode(self, data: bytes, place: str) -> Encoded:
        raise OSError("the key service does not answer")

    def decode(self, encoded: Encoded, place: str) -> bytes:
        raise OSError("the key service does not answer")


def stored(pipeline: Pipeline, value: object) -> bytes:
    return pipeline.encode(json.dumps(value).encode(), PLACE, "input_data")


def why(pipeline: Pipeline, data: bytes, place: str = PLACE) -> Unreadable:
    found = unreadable(pipeline.decode(data, place))
    assert found is not None
    return found


# Pipelines and envelopes.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | st.just("~perdure"), inner),
    max_leaves=10,
)


@given(VALUES, st.booleans())
def test_any_value_survives_any_pipeline(value: object, spaced: bool) -> None:
    data = json.dumps(value, separators=(" , ", " : ") if spaced else (",", ":")).encode()
    for codecs in ([Reversed()], [Compressed(above=0)], [Compressed(above=0), Encrypted({"k": KEY}), Reversed()]):
        pipeline = Pipeline(codecs)
        found = pipeline.encode(data, PLACE, "input_data")
        assert json.loads(found) is not Ellipsis  # it is JSON
        assert pipeline.decode(found, PLACE) == data
        assert pipeline.decode(pipeline.encode_binary(data, PLACE, "data"), PLACE) == data


@pytest.mark.parametrize("data", [MARK + b' ["aes256gcm:k1"], "data": "AA=="}', MARK + b" 1}", MARK])
def test_value_that_looks_like_an_envelope_survives(data: bytes) -> None:
    pipeline = Pipeline(Compressed(above=10_000))  # which leaves it as it is
    assert pipeline.decode(pipeline.encode(data, PLACE, "input_data"), PLACE) == data
    binary = envelopes.BINARY_MARK + b"\x00\x00"
    assert pipeline.decode(pipeline.encode_binary(binary, PLACE, "data"), PLACE) == binary


def test_values_of_users_are_never_written_like_envelopes() -> None:
    for value in ({"~perdure": ["zlib"], "data": ""}, [{"~perdure": 1}], PREFIX, {"a": PREFIX}):
        assert MARK not in encode(value)


@pytest.mark.parametrize(
    "data", [MARK + b" 7}", MARK + b' ["x"], "data": "%"}', MARK + b' ["x"]', envelopes.BINARY_MARK]
)
def test_damaged_envelope_is_unreadable(data: bytes) -> None:
    assert "damaged" in why(Pipeline(Reversed()), data).why


def test_codec_that_this_process_does_not_have_is_named() -> None:
    data = stored(Pipeline(Reversed()), "x")
    found = why(Pipeline(Encrypted({"k": KEY})), data)
    assert found.how == "encoded by 'reversed' (v1)"
    assert "'reversed'" in found.why
    assert "'reversed'" in str(found.error("the input of run 'r-1'"))


def test_compressed_values_need_no_setting_to_be_read() -> None:
    data = stored(Pipeline(Compressed(above=0)), "x" * 5000)
    assert len(data) < 200
    assert Pipeline(Encrypted({"k": KEY})).decode(data, PLACE) == json.dumps("x" * 5000).encode()


def test_error_of_a_codec_is_an_error_of_the_value() -> None:
    with pytest.raises(CodecError, match=r"input_data \(run r-1/input\).*'reversed'.*key service does not answer"):
        stored(Pipeline(Broken()), "x")
    data = stored(Pipeline(Reversed()), "x")
    assert "OSError: the key service does not answer" in why(Pipeline(Broken()), data).why


class Confused(Reversed):
    """A codec that returns bytes where an object is expected, and the other way round."""

    def encode(self, data: bytes, place: str) -> Any:
        return data[::-1]

    def decode(self, encoded: Encoded, place: str) -> Any:
        return encoded


def test_codec_that_returns_something_else_is_named() -> None:
    with pytest.raises(CodecError, match=r"'reversed' raised TypeError: encode\(\) returned bytes, not"):
        stored(Pipeline(Confused()), "x")
    said = why(Pipeline(Confused()), stored(Pipeline(Reversed()), "x")).why
    assert "'reversed' raised TypeError: decode() returned Encoded, not bytes" in said


def test_sizes_are_checked_before_and_after_encoding() -> None:
    class Doubling(Reversed):
        def encode(self, data: bytes, place: str) -> Encoded:
            return Encoded(data + data)

    with pytest.raises(LimitError, match="input_data has 8388610 bytes"):
        stored(Pipeline(Encrypted({"k": KEY})), "x" * (8 << 20))
    assert unreadable(stored(Pipeline(Encrypted({"k": KEY})), "x" * ((8 << 20) - 2))) is not None
    with pytest.raises(LimitError, match=r"input_data has 6000002 bytes, and 160000\d\d once encoded"):
        stored(Pipeline(Doubling()), "x" * 6_000_000)


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ([], "empty list"),
        (7, "must be a codec"),
        ([Compressed(), "zlib"], "'zlib' is none"),
        (Compressed, "must be a codec"),
        ([Encrypted({"k": KEY}), Compressed()], "Compressed must come before Encrypted"),
        ([Reversed(), Reversed()], "same name"),
        ([Offloaded(FileBlobs(".")), Encrypted({"k": KEY})], "must be the last"),
    ],
)
def test_pipeline_that_cannot_work_is_refused_when_the_app_is_made(codec: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        App(MEMORY, codec=codec)  # type: ignore[arg-type]


def test_notes_and_names_are_checked() -> None:
    class Noted(Reversed):
        def encode(self, data: bytes, place: str) -> Encoded:
            return Encoded(data, "line\nbreak")

    with pytest.raises(CodecError, match="printable"):
        stored(Pipeline(Noted()), "x")
    Noted.name = "No Good"
    with pytest.raises(CodecError, match="'No Good'"):
        Pipeline(Noted())


def test_plain_rows_are_those_that_hold_nothing_of_a_user() -> None:
    plain = {records.DEADLINE, records.UNTIL, records.PARENT, "TimerExpired", "MessageTimeout", "CompensationExecuted"}
    assert {str(each) for each in PLAIN_TYPES} == plain


# Compression.


def test_values_are_compressed_only_if_that_helps() -> None:
    codec = Compressed(above=100)
    assert codec.encode(b"x" * 100, PLACE) is None
    assert codec.encode(os.urandom(5000), PLACE) is None
    found = codec.encode(b"x" * 101, PLACE)
    assert found is not None
    assert codec.decode(found, PLACE) == b"x" * 101


def test_bomb_does_not_fill_the_memory() -> None:
    bomb = Encoded(zlib.compress(bytes(10_000_000)))
    with pytest.raises(CodecError, match="more than 1000 bytes"):
        Compressed(limit=1000).decode(bomb, PLACE)
    with pytest.raises(CodecError, match="cut off"):
        Compressed().decode(Encoded(bomb.data[:-5]), PLACE)
    with pytest.raises(CodecError, match="damaged"):
        Compressed().decode(Encoded(b"nonsense"), PLACE)
    assert Compressed(limit=1000).encode(bytes(1001), PLACE) is None  # it could not be read again


@pytest.mark.parametrize("setting", [{"above": -1}, {"above": True}, {"limit": 0}, {"level": 10}, {"level": "6"}])
def test_wrong_settings_of_compression_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"Compressed.{next(iter(setting))}="):
        Compressed(**setting)


# Encryption.


def test_first_key_encrypts_and_all_decrypt() -> None:
    old, new = {"k1": KEY}, {"k2": new_key(), "k1": KEY}
    data = Encrypted(old).encode(b"secret", PLACE)
    assert data.note == "k1"
    assert Encrypted(new).decode(data, PLACE) == b"secret"
    assert Encrypted(new).encode(b"secret", PLACE).note == "k2"
    assert Encrypted({"k1": b64encode(KEY).decode()}).decode(data, PLACE) == b"secret"


def test_same_value_is_encrypted_to_different_bytes() -> None:
    codec = Encrypted({"k1": KEY})
    found = {codec.encode(b"secret", PLACE).data for _ in range(100)}
    assert len(found) == len({each[:12] for each in found}) == 100


def test_unknown_key_is_named() -> None:
    data = stored(Pipeline(Encrypted({"k9": KEY})), "secret")
    found = why(Pipeline(Encrypted({"k1": new_key(), "k2": new_key()})), data)
    assert found.how == "encrypted with key 'k9'"
    assert found.why == "this process has no key 'k9', only 'k1', 'k2': add it to Encrypted(keys)"


def test_wrong_key_changed_value_and_moved_value_are_refused() -> None:
    pipeline = Pipeline(Encrypted({"k1": KEY}))
    data = stored(pipeline, "secret")
    envelope = envelopes.read(data)
    assert envelope is not None
    for position in (0, 12, len(envelope.data) - 1):  # the nonce, the value, the tag
        changed = bytearray(envelope.data)
        changed[position] ^= 1
        assert "changed or moved" in why(pipeline, Envelope(envelope.tags, bytes(changed)).text()).why
    for tags in ((Tag("aes256gcm", "k1"), Tag("aes256gcm", "k1")), (Tag("zlib"), Tag("aes256gcm", "k1"))):
        assert why(pipeline, Envelope(tags, envelope.data).text()).why
    assert "changed or moved" in why(Pipeline(Encrypted({"k1": new_key()})), data).why
    assert "changed or moved" in why(pipeline, data, "run r-2/input").why
    assert "changed or moved" in why(pipeline, Envelope(envelope.tags, b"").text()).why


@pytest.mark.parametrize(
    "keys",
    [{}, [KEY], {"k": KEY[:31]}, {"k": "not base64"}, {"k": None}, {"": KEY}, {"a:b": KEY}, {"k" * 65: KEY}, {7: KEY}],
)
def test_wrong_keys_are_refused(keys: dict[str, bytes]) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        Encrypted(keys)


def test_keys_show_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = "VerySecretKeyThatNobodyMaySee123"
    codec = Encrypted({"k1": secret.encode()})
    with pytest.raises(ConfigurationError) as wrong:
        Encrypted({"k1": secret.encode(), "k2": (secret + "!").encode()})
    frames = traceback.TracebackException.from_exception(wrong.value, capture_locals=True)
    ours = [frame for frame in frames.stack if "perdure/codecs" in frame.filename]
    assert ours
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("perdure").warning("%r %s %r", codec, codec, Pipeline(codec))
    shown = [repr(codec), repr(App(MEMORY, codec=codec)), str(vars(codec)), caplog.text, str(wrong.value)]
    for text in (*shown, *(str(frame.locals) for frame in ours)):
        assert secret not in text
    assert "'k1'" in repr(codec)


# Blobs.


def test_large_values_are_offloaded(tmp_path: Path) -> None:
    pipeline = Pipeline([Encrypted({"k": KEY}), Offloaded(FileBlobs(tmp_path), above=1000)])
    small, large = stored(pipeline, "x"), stored(pipeline, "x" * 5000)
    (blob,) = FileBlobs(tmp_path).list()
    assert len(large) < 200
    assert blob.name in large.decode()
    assert b"xxxx" not in (FileBlobs(tmp_path).get(blob.name) or b"xxxx")
    assert json.loads(pipeline.decode(large, PLACE)) == "x" * 5000
    assert json.loads(pipeline.decode(small, PLACE)) == "x"


def test_missing_and_changed_blobs_are_named(tmp_path: Path) -> None:
    pipeline = Pipeline(Offloaded(FileBlobs(tmp_path), above=0))
    data = stored(pipeline, "secret")
    (blob,) = FileBlobs(tmp_path).list()
    FileBlobs(tmp_path).put(blob.name, b"other")
    assert "other bytes" in why(pipeline, data).why
    assert FileBlobs(tmp_path).delete(blob.name, datetime.now(UTC) + timedelta(seconds=9))
    assert f"has no blob {blob.name}" in why(pipeline, data).why


def test_blob_is_complete_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, name = FileBlobs(tmp_path / "new" / "folder"), "ab" * 32
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.put(name, b"data")
    assert store.get(name) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_blob_that_was_stored_again_is_not_deleted(tmp_path: Path) -> None:
    store, name = FileBlobs(tmp_path), "ab" * 32
    store.put(name, b"data")
    (blob,) = store.list()
    assert not store.delete(name, blob.stored_at)  # it is not older than that
    assert store.get(name) == b"data"
    assert store.delete(name, blob.stored_at + timedelta(seconds=1))
    assert store.get(name) is None
    assert not store.delete(name, datetime.now(UTC))
    assert list(store.list()) == []


def test_blob_that_a_crash_left_while_it_was_deleted_can_be_read(tmp_path: Path) -> None:
    store, name = FileBlobs(tmp_path), "ab" * 32
    store.put(name, b"data")
    path = tmp_path / "ab" / name
    path.rename(path.with_name(f".{name}.deleted"))
    assert store.get(name) == b"data"


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "ab", "AB" * 32, "ab" * 32 + "\n"])
def test_names_that_are_no_blobs_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CodecError, match="not the name of a blob"):
        FileBlobs(tmp_path).get(name)


@pytest.mark.parametrize(
    ("store", "above"), [("folder", 1), (FileBlobs, 1), (FileBlobs("."), -1), (FileBlobs("."), True)]
)
def test_wrong_settings_of_offloading_are_refused(store: Any, above: int) -> None:
    with pytest.raises(ConfigurationError, match="Offloaded"):
        Offloaded(store, above)
