"""The encryption of payloads: what comes back, what is refused, and that no key is ever shown."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    PayloadCodec,
)
from temporalio.exceptions import ApplicationError

from tenxgraph_temporal import EncryptionCodec, EncryptionKeys, Settings
from tenxgraph_temporal.runtime.codec import CIPHER_FIELD, KEY_ID_FIELD, EncodedFailureConverter
from tenxgraph_temporal.runtime.connect import with_our_models
from tenxgraph_temporal.runtime.errors import EncryptionError, SettingsError

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
SECRET = "the customer's card is 4242"

payloads = st.builds(
    Payload, metadata=st.dictionaries(st.text(max_size=20), st.binary(max_size=40), max_size=4), data=st.binary()
).filter(lambda payload: payload.metadata.get("encoding") != b"binary/encrypted")


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def codec(**keys: bytes) -> EncryptionCodec:
    return EncryptionCodec(EncryptionKeys(keys))


def plain(data: bytes = SECRET.encode()) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


def changed(payload: Payload, *, data: bytes | None = None, **metadata: bytes) -> Payload:
    made = Payload()
    made.CopyFrom(payload)
    if data is not None:
        made.data = data
    for name, value in metadata.items():
        made.metadata[name.replace("_", "-")] = value
    return made


# --- payloads -----------------------------------------------------------------------------------------------


@given(payload=payloads)
def test_what_was_encrypted_comes_back(payload: Payload) -> None:
    ours = codec(k1=OLD)
    crossing = ours.encrypt(payload)
    assert crossing.metadata["encoding"] == b"binary/encrypted"
    assert ours.decrypt(crossing) == payload


@given(payload=payloads)
def test_what_was_not_encrypted_passes(payload: Payload) -> None:
    for ours in (codec(), codec(k1=OLD)):
        assert ours.decrypt(payload) == payload
    assert codec().encrypt(payload) == payload


@pytest.mark.parametrize("data", [b"", b"\0", b"x" * 2 * 1024 * 1024], ids=["empty", "one byte", "2 MB"])
async def test_sizes(data: bytes) -> None:
    ours = codec(k1=OLD)
    crossing = await ours.encode([plain(data), Payload()])
    assert await ours.decode(crossing) == [plain(data), Payload()]
    assert len(crossing[0].SerializeToString()) < len(data) + 200


def test_nothing_of_the_payload_is_readable_and_no_two_are_alike() -> None:
    ours = codec(k1=OLD)
    crossing = [ours.encrypt(plain()) for _ in range(1000)]
    assert all(SECRET.encode() not in payload.SerializeToString() for payload in crossing)
    assert all(b"json/plain" not in payload.SerializeToString() for payload in crossing), "its metadata is content too"
    assert len({payload.data[:12] for payload in crossing}) == 1000, "a nonce was used twice"


def test_rotation() -> None:
    """The first key encrypts, all decrypt; a key that is gone is named."""
    before = codec(k1=OLD).encrypt(plain())
    both = codec(k2=NEW, k1=OLD)
    assert both.decrypt(before) == plain()
    after = both.encrypt(plain())
    assert after.metadata[KEY_ID_FIELD] == b"k2"
    assert codec(k2=NEW).decrypt(after) == plain()
    with pytest.raises(EncryptionError, match=r"'k1', and this process has the keys k2; set TENXGRAPH_ENCRYPTION_KEYS"):
        codec(k2=NEW).decrypt(before)
    with pytest.raises(EncryptionError, match=r"'k1', and this process has no keys; set TENXGRAPH_ENCRYPTION_KEYS"):
        codec().decrypt(before)


def test_switching_on_in_two_steps() -> None:
    """With ``plain`` first, everything is still written in clear, and what others encrypted is read."""
    reading = EncryptionCodec(EncryptionKeys.parse(f"plain,k1:{encoded(OLD)}"))
    assert reading.encrypt(plain()) == plain()
    assert reading.decrypt(codec(k1=OLD).encrypt(plain())) == plain()


@settings(max_examples=300)
@given(data=st.data())
def test_any_changed_bit_is_noticed(data: st.DataObject) -> None:
    ours = codec(k1=OLD)
    crossing = ours.encrypt(plain())
    position = data.draw(st.integers(0, len(crossing.data) * 8 - 1))
    bits = bytearray(crossing.data)
    bits[position // 8] ^= 1 << position % 8
    with pytest.raises(EncryptionError, match=r"'k1'.*changed or cut") as caught:
        ours.decrypt(changed(crossing, data=bytes(bits)))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 27, 28, -1])
def test_cut_data_is_noticed(length: int) -> None:
    ours = codec(k1=OLD)
    crossing = ours.encrypt(plain())
    with pytest.raises(EncryptionError, match=r"'k1'.*changed or cut"):
        ours.decrypt(changed(crossing, data=crossing.data[:length]))


def test_a_swapped_key_id_or_cipher_is_noticed() -> None:
    """Also where both ids name the same key: the id is authenticated."""
    ours = codec(k1=OLD, k2=OLD)
    crossing = ours.encrypt(plain())
    with pytest.raises(EncryptionError, match=r"'k2'.*changed or cut"):
        ours.decrypt(changed(crossing, encryption_key_id=b"k2"))
    with pytest.raises(EncryptionError, match=r"'k9', and this process has the keys k1, k2"):
        ours.decrypt(changed(crossing, encryption_key_id=b"k9"))
    with pytest.raises(EncryptionError, match=r"'\ufffd+'"):
        ours.decrypt(changed(crossing, encryption_key_id=b"\xff\xfe"))
    with pytest.raises(EncryptionError, match="another codec"):
        ours.decrypt(changed(crossing, encryption_cipher=b"AES-128-CBC"))
    with pytest.raises(EncryptionError, match="another codec"):
        codec().decrypt(Payload(metadata={"encoding": b"binary/encrypted"}, data=b"of somebody else"))
    assert CIPHER_FIELD in crossing.metadata


def test_another_key_under_the_same_id() -> None:
    with pytest.raises(EncryptionError, match=r"'k1'.*another key had this id; compare TENXGRAPH_ENCRYPTION_KEYS"):
        codec(k1=NEW).decrypt(codec(k1=OLD).encrypt(plain()))


# --- failures -----------------------------------------------------------------------------------------------


async def test_texts_and_traces_of_failures_are_encrypted() -> None:
    converter = with_our_models(None, EncryptionKeys({"k1": OLD}))
    failure = Failure()
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as exc:
            raise ApplicationError(SECRET, SECRET, type="NODE_001") from exc
    except ApplicationError as exc:
        await converter.encode_failure(exc, failure)
    crossing = failure.SerializeToString()
    assert SECRET.encode() not in crossing
    assert b"test_codec" not in crossing, "the stack trace"
    assert failure.application_failure_info.type == "NODE_001"
    decoded = await converter.decode_failure(failure)
    assert isinstance(decoded, ApplicationError)
    assert (decoded.message, decoded.details) == (SECRET, (SECRET,))
    assert SECRET in str(decoded.cause)


async def test_what_is_wrong_with_the_keys_stays_readable() -> None:
    """Whoever has to mend them has not got them."""
    converter = with_our_models(None, EncryptionKeys({"k2": NEW}))
    failure = Failure()
    try:
        await converter.decode([codec(k1=OLD).encrypt(plain())])
    except EncryptionError as exc:
        await converter.encode_failure(exc, failure)
    assert "[ENCRYPTION_001] a payload is encrypted with the key 'k1'" in failure.message


# --- converters of the user's own ---------------------------------------------------------------------------


class TheirCodec(PayloadCodec):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


class TheirPayloads(DefaultPayloadConverter):
    pass


class TheirFailures(DefaultFailureConverter):
    pass


def test_a_converter_of_ones_own_is_kept() -> None:
    theirs = DataConverter(payload_converter_class=TheirPayloads, failure_converter_class=TheirFailures)
    made = with_our_models(theirs, EncryptionKeys({"k1": OLD}))
    assert made.payload_converter_class is TheirPayloads
    assert made.failure_converter_class is TheirFailures
    assert isinstance(made.payload_codec, EncryptionCodec)


def test_a_codec_of_ones_own_is_kept_and_never_combined_by_guess() -> None:
    theirs = DataConverter(payload_codec=TheirCodec())
    made = with_our_models(theirs)
    assert made.payload_codec is theirs.payload_codec
    assert made.payload_converter_class is PydanticPayloadConverter
    with pytest.raises(SettingsError, match=r"codec of its own \(TheirCodec\).*TENXGRAPH_ENCRYPTION_KEYS is set"):
        with_our_models(theirs, EncryptionKeys({"k1": OLD}))


def test_both_plugins_on_one_client_encrypt_once() -> None:
    keys = EncryptionKeys({"k1": OLD})
    made = with_our_models(None, keys)
    assert with_our_models(made, keys) is made
    assert with_our_models(made) is made
    late = with_our_models(with_our_models(None), keys)
    assert isinstance(late.payload_codec, EncryptionCodec)
    assert late.payload_codec.keys is keys
    assert late.failure_converter_class is EncodedFailureConverter


# --- the setting --------------------------------------------------------------------------------------------


def test_keys_are_read() -> None:
    url_safe = base64.urlsafe_b64encode(b"\xff" * 32).decode()
    keys = Settings.from_env({"TENXGRAPH_ENCRYPTION_KEYS": f" 2026-02:{url_safe} ,\n2026-01:{encoded(OLD)}\n"}).keys
    assert keys.ids == ("2026-02", "2026-01")
    assert keys.current_id == "2026-02"
    assert dict(keys.items()) == {"2026-02": b"\xff" * 32, "2026-01": OLD}
    assert not Settings.from_env({}).keys


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{key}", "entry 1 of 1 is not id:key"),
        ("{key}:k1", "entry 1 of 1 is not id:key"),
        ("{bare}:{key}", "entry 1 of 1 is not id:key"),
        ("k1:{key},", "entry 2 of 2 is not id:key"),
        ("k1:{key},k2:{cut}", "entry 2 of 2 is not id:key"),
        ("k1:{bare}", "entry 1 of 1 is not id:key"),
        ("k 1:{key}", "entry 1 of 1 is not id:key"),
        (":{key}", "entry 1 of 1 is not id:key"),
        ("k1:{key};k2:{key}", "entry 1 of 1 is not id:key"),
        ("k1:{hex}", "entry 1 of 1 is not id:key"),
        ("k1:{key},k1:{key}", "entry 2 of 2 has the id of an earlier one"),
        ("k1:{key},plain", "entry 2 of 2 is not id:key"),
        ("plain", "'plain' stands before keys that still decrypt"),
    ],
)
def test_wrong_keys_are_refused_without_being_shown(value: str, problem: str) -> None:
    key = encoded(OLD)
    given = {"key": key, "bare": key.rstrip("="), "cut": key[:20], "hex": OLD.hex()}
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"TENXGRAPH_ENCRYPTION_KEYS": value.format(**given)})
    assert f"TENXGRAPH_ENCRYPTION_KEYS: Value error, {problem}" in str(caught.value)
    assert not [secret for secret in (key[:20], OLD.hex()) if secret in str(caught.value)], caught.value
    with pytest.raises(ValueError) as direct:  # pydantic's own error, whose text would hold the value
        Settings.model_validate({"encryption_keys": value.format(**given)})
    assert not [secret for secret in (key[:20], OLD.hex()) if secret in str(direct.value)], direct.value


@pytest.mark.parametrize("keys", [{"k1": b"short"}, {"": OLD}, {"k1": OLD, "a,b": NEW}])
def test_keys_given_as_bytes_are_checked_too(keys: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=rf"entry {len(keys)} is not id:key"):
        EncryptionKeys(keys)


def test_no_repr_shows_a_key() -> None:
    made = Settings.from_env({"TENXGRAPH_ENCRYPTION_KEYS": f"k1:{encoded(OLD)}", "TENXGRAPH_CODEC_SERVER_TOKEN": "t0k"})
    shown = "".join([repr(made), str(made), made.model_dump_json(), repr(made.keys), repr(EncryptionCodec(made.keys))])
    shown += repr(with_our_models(None, made.keys))
    assert "k1" in shown
    assert not re.search(rf"{re.escape(encoded(OLD)[:8])}|t0k|{re.escape(repr(OLD)[2:20])}", shown), shown


def test_without_cryptography_one_line_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from tenxgraph_temporal import EncryptionCodec, EncryptionKeys\n"
        "EncryptionCodec(EncryptionKeys())\n"
        "try: EncryptionCodec(EncryptionKeys({'k1': bytes(32)}))\n"
        "except Exception as exc: print(exc)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == (
        "[SETTINGS_001] TENXGRAPH_ENCRYPTION_KEYS needs cryptography: pip install 'tenxgraph-temporal[encryption]'\n"
    )
