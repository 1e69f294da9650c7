"""How a store is found and who is let in; and that nobody sees by what."""

from __future__ import annotations

import errno
import logging
import pickle
from typing import TYPE_CHECKING

import pytest
from tests.servers.seaweed import DOMAIN

import penstock
from penstock import _native
from penstock.errors import CatalogError, DeniedError, PenstockError, StoreError
from penstock.sources import far
from penstock.sources.address import taken_apart
from penstock.sources.listing import StoreSpec
from penstock.table import Origin

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3

    from .conftest import Bucket

TEXTS = {f"{n}.txt": b"text %d" % n for n in range(5)}


@pytest.fixture
def texts(bucket: Bucket) -> Bucket:
    bucket.put(TEXTS)
    return bucket


def read(uri: str, **storage: object) -> list[bytes]:
    return [bytes(sample["text"]) for sample in penstock.open(uri, storage=storage)]


def test_by_the_environment(s3: S3, texts: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    assert read(texts.uri) == list(TEXTS.values())


def test_by_the_configuration_files(s3: S3, texts: Bucket, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".aws"
    folder.mkdir(parents=True)
    keys = f"aws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    (folder / "credentials").write_text(
        f"[default]\naws_access_key_id = x\naws_secret_access_key = y\n[lab]\n{keys}"
    )
    (folder / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\n")
    assert read(texts.uri, profile="lab") == list(TEXTS.values())
    with pytest.raises(DeniedError):
        read(texts.uri, endpoint=s3.endpoint)


def test_by_the_uri(s3: S3, texts: Bucket) -> None:
    place = texts.uri.removeprefix("s3://")
    user = f"{s3.access_key}:{s3.secret_key}"
    assert read(f"s3://{user}@{place}?endpoint={s3.endpoint}&region=us-east-1") == list(TEXTS.values())


def test_anonymous(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _native.Store.object("s3://public/set", s3.storage)
    for name, data in TEXTS.items():
        store.put(name, data)
    assert read("s3://public/set", endpoint=s3.endpoint, anonymous=True) == list(TEXTS.values())
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert read("s3://public/set", endpoint=s3.endpoint) == list(TEXTS.values())


def test_virtual_host_style(s3: S3, texts: Bucket) -> None:
    # The server as a proxy: no name server knows the bucket's host.
    found = read(
        texts.uri,
        **{**s3.storage, "endpoint": f"http://{DOMAIN}:{s3.port}"},
        virtual_host=True,
        proxy_url=s3.endpoint,
    )
    assert found == list(TEXTS.values())


def test_tls_with_a_ca_of_ones_own(
    s3: S3, texts: Bucket, certificates: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = {**s3.storage, "endpoint": s3.tls_endpoint}
    assert read(texts.uri, **storage, ca_file=certificates[0]) == list(TEXTS.values())
    with pytest.raises(StoreError, match=r"(?i)certificate"):
        read(texts.uri, **storage)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates[0]))
    assert read(texts.uri, **storage) == list(TEXTS.values())
    with pytest.raises(StoreError, match="the CA file /nowhere"):
        read(texts.uri, **storage, ca_file="/nowhere")


@pytest.mark.parametrize(
    "wrong", [{"secret_access_key": "top-secret"}, {"access_key_id": "nobody-known"}, {"anonymous": True}]
)
def test_wrong_credentials_say_what_to_do(s3: S3, texts: Bucket, wrong: dict[str, object]) -> None:
    storage = {**s3.storage, **wrong}
    with pytest.raises(PermissionError, match="check the credentials") as caught:
        penstock.open(texts.uri, storage=storage)
    assert isinstance(caught.value, DeniedError)
    assert caught.value.errno == errno.EACCES
    assert "s3://tests" in str(caught.value)


def test_options_that_no_store_has_are_named(texts: Bucket) -> None:
    with pytest.raises(StoreError, match=".regoin. is no option of S3 stores"):
        penstock.open(texts.uri, storage={**texts.storage, "regoin": "x"})
    with pytest.raises(CatalogError, match="'cache' or 'beside'"):
        penstock.open(texts.uri, storage={**texts.storage, "index": "nearby"})
    with pytest.raises(TypeError, match="is a list"):
        penstock.open(texts.uri, storage={"region": ["x"]})


SECRETS = ("swordfish", "open-sesame")


@pytest.mark.parametrize(
    ("uri", "storage"),
    [
        ("s3://bucket/data", {"access_key_id": "swordfish", "secret_access_key": "open-sesame"}),
        ("s3://swordfish:open-sesame@bucket/data", {}),
        ("s3://bucket/data?access_key_id=swordfish&secret_access_key=open-sesame", {}),
        ("http://swordfish:open-sesame@127.0.0.1:1/data/", {}),
        ("http://127.0.0.1:1/data/x.tar?X-Amz-Signature=swordfish", {}),
        ("http://127.0.0.1:1/data/", {"authorization": "Bearer open-sesame"}),
        ("az://box/data", {"account_name": "x", "account_key": "b3Blbi1zZXNhbWU="}),
        ("gs://box/data", {"service_account_key": '{"private_key": "open-sesame"}'}),
    ],
)
def test_secrets_are_never_shown(
    uri: str,
    storage: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = {"endpoint": "http://127.0.0.1:1"} if uri.startswith(("s3", "az")) else {}
    caplog.set_level(logging.DEBUG)
    shown = []
    plain, options = taken_apart(uri, {**endpoint, **storage})
    for each in (StoreSpec(plain, options), Origin(plain, options)):
        shown += [repr(each), str(each), repr(pickle.loads(pickle.dumps(each)))]
    monkeypatch.setattr(far, "TIMEOUT", 0.3)
    monkeypatch.setattr(far, "LISTING_TIMEOUT", 0.3)
    with pytest.raises((PenstockError, OSError)) as caught:
        penstock.open(uri, storage={**endpoint, **storage})
    error: BaseException | None = caught.value
    while error is not None:
        shown += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    captured = capfd.readouterr()
    shown += [caplog.text, captured.out, captured.err]
    for secret in (*SECRETS, "b3Blbi1zZXNhbWU="):
        assert not any(secret in text for text in shown), (secret, shown)


def test_a_dataset_and_its_trace_show_no_secret(s3: S3, texts: Bucket) -> None:
    data = penstock.open(texts.uri, storage=texts.storage)
    assert s3.secret_key not in repr(data) + repr(data.store) + repr(data.catalog) + repr(data.catalog.origin)
    again = pickle.loads(pickle.dumps(data))
    assert s3.secret_key not in repr(again) + repr(again.store)
    texts.store().delete("3.txt")
    with penstock.Loader(data, batch_size=5) as loader, pytest.raises(PenstockError) as caught:
        list(loader)
    assert s3.secret_key not in str(caught.value) + repr(loader)


def test_uris_are_taken_apart() -> None:
    assert taken_apart("s3://b/t-{0..9}.tar", None) == ("s3://b/t-{0..9}.tar", {})
    assert taken_apart("s3://b/t-?.tar", None) == ("s3://b/t-?.tar", {})
    assert taken_apart("S3://b/x?region=eu-1", {"region": "us-1"}) == ("s3://b/x", {"region": "us-1"})
    assert taken_apart("https://u:p%40@h/x.tar?a=b/c", None) == (
        "https://h/x.tar",
        {"query": "a=b/c", "authorization": "Basic dTpwQA=="},
    )
    assert taken_apart("/local/a?b=c", None) == ("/local/a?b=c", {})
    with pytest.raises(CatalogError, match="hold no user"):
        taken_apart("gs://u:p@b/x", None)
