"""What a user of the S3 servers relies on: versions, one winner, nothing left behind, what a killed server keeps."""

import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from durabench import fault, service
from durabench_backends import registry
from durabench_backends.contract import KEY_MAX_BYTES, Conditional, Domain, Fact, NotReady, Refused, Versioned
from durabench_backends.s3 import client, promises

SERVERS = {"s3-swift": "versioned", "s3-seaweedfs": "versioned-fsync", "s3-moto": "versioned"}
"""Each with the setting that offers most; a store of it that offers less is opened where less is tested."""
SECRET = "correct-horse"


@pytest.fixture(scope="module", params=list(SERVERS))
def shared(request, tmp_path_factory):
    with service.running(request.param, SERVERS[request.param], tmp_path_factory.mktemp("s3") / "run") as found:
        yield found


@pytest.fixture
def backend(shared):
    return shared.backend


@pytest.fixture
def store(backend, request):
    namespace = request.node.originalname
    yield backend.open(namespace)
    backend.drop(namespace)


def kill(running):
    running.machine.strike(fault.load("kill-server"), 0)
    running.start()
    running.ready()


def url_of(running, prefix=""):
    port = running.machine.port("store/proxy" if running.target.backend == "s3-swift" else "store/s3")
    return f"s3://durabench/{prefix}?endpoint_url=http://127.0.0.1:{port}&region=us-east-1"


def keys_of(running, monkeypatch):
    """Leaves the server's credentials where the AWS command line looks for them."""
    options = running.backend._bucket.where.options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["aws_secret_access_key"])


def settings():
    for name in SERVERS:
        yield from ((name, setting) for setting in registry.load(name).settings)


@pytest.mark.parametrize("name, setting", [pytest.param(n, s, id=f"{n}:{s.name}") for n, s in settings()])
def test_settings_promise_what_is_documented(name, setting):
    promise, mock = setting.promise, getattr(registry.load(name), "mock", False)
    synced = name == "s3-swift" or setting.name == "versioned-fsync"
    assert promise.tier == ("T3" if synced else "T0" if mock else "T1")
    assert promise.may_lose_s.get(Domain.DRIVE) == promise.may_lose_s.get(Domain.MACHINE) == (0 if synced else None)
    assert (promise.atomic, promise.ordered) == (None if mock else Domain.DRIVE, None)
    assert (Domain.NOTHING in promise.may_lose_s) is not mock


def test_the_first_setting_is_the_default_and_the_mock_is_labelled():
    assert [registry.load(name).settings[0].name for name in SERVERS] == ["unversioned"] * 3
    assert [getattr(registry.load(name), "mock", False) for name in SERVERS] == [False, False, True]


VALUES = {
    promises.VENDOR: ["swift", "seaweedfs", "moto", "aws", "unknown", "nonsense"],
    promises.FSYNC: ["true", "false"],
    promises.VERSIONING: ["Off", "Enabled"],
}


@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}), st.data())
def test_missing_facts_never_strengthen_the_promise(values, data):
    facts = [Fact(name, value, "drawn") for name, value in values.items()]
    fewer = promises.promise(data.draw(st.lists(st.sampled_from(facts), unique=True)))
    whole = promises.promise(reversed(facts))
    assert set(fewer.may_lose_s) <= set(whole.may_lose_s)
    assert (fewer.atomic or 0) <= (whole.atomic or 0)


legal_keys = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=50)


@given(st.lists(legal_keys | st.sampled_from(["..", "/a", "a//b", "a.", "a./b", "a_2E", "a" * 200]), unique=True))
def test_object_names_are_injective_and_nothing_that_a_server_normalises(keys):
    names = [client.object_name(key) for key in keys]
    assert [client.key_of(name) for name in names] == keys
    folders = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)}
    assert not folders & set(names), "an object lies where another's folder must be"
    for piece in (piece for name in names for piece in name.split("/")):
        assert len(piece) <= 255 - len(".versions")
        assert set(piece.rstrip(".")) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def test_the_longest_key_fits():
    name = client.object_name("\x7f" * KEY_MAX_BYTES)
    assert len(name) < 1024 - 3 * 100, "nor with a namespace and a prefix before it"


def test_versions_are_listed_newest_first_and_without_delete_markers(store):
    assert isinstance(store, Versioned)
    for value in (b"1", b"2", b"", b"3"):
        store.put("key", value)
    store.put("key2", b"of another key that begins alike")
    found = list(store.versions("key"))
    assert [value for _, value in found] == [b"3", b"", b"2", b"1"]
    store.delete("key")
    assert store.get("key") is None
    assert list(store.versions("key")) == found
    store.put("key", b"4")
    assert [value for _, value in store.versions("key")] == [b"4", b"3", b"", b"2", b"1"]
    assert store.size_bytes() == 4 + 32
    assert len({version for version, _ in store.versions("key")}) == 5


@pytest.mark.parametrize("name, setting", [pytest.param(n, s, id=f"{n}:{s.name}") for n, s in settings()])
def test_what_is_offered_depends_on_the_setting_and_the_server(name, setting, monkeypatch, tmp_path):
    backend = registry.load(name)(setting, tmp_path, lambda _: 1)
    monkeypatch.setattr(client.Bucket, "head", lambda _self: {})
    monkeypatch.setattr(type(backend), "_answering", lambda _self: None, raising=False)
    store = backend.open("namespace")
    assert isinstance(store, Versioned) == setting.name.startswith("versioned")
    assert isinstance(store, Conditional) == (name != "s3-swift"), "Swift's If-None-Match had two winners of sixteen"


def test_one_of_sixteen_wins_a_conditional_put(shared, store):
    if shared.target.backend == "s3-swift":
        assert not isinstance(store, Conditional)
        return
    store.put("a connection", b"")
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda writer: store.put_if_absent("key", b"%d" % writer), range(16)))
    assert won.count(True) == 1
    assert store.get("key") == b"%d" % won.index(True)
    store.delete("key")
    assert store.put_if_absent("key", b"after its delete")


def test_drop_leaves_no_version_no_delete_marker_and_no_upload(backend):
    store, other = backend.open("dropped"), backend.open("dropped2")
    other.put("key", b"stays")
    for key in ("a", "b/c", "x" * 200):
        store.put(key, b"1")
        store.put(key, b"2")
    store.delete("a")
    store.delete("never there")
    bucket = backend._bucket
    name = bucket.prefix("dropped") + "upload"
    upload = bucket.client.create_multipart_upload(Bucket=client.BUCKET, Key=name)["UploadId"]
    bucket.client.upload_part(Bucket=client.BUCKET, Key=name, UploadId=upload, PartNumber=1, Body=b"part")

    def left(namespace):
        prefix = bucket.prefix(namespace)
        listed = bucket.listed(prefix)
        pages = bucket.pages("list_multipart_uploads", Prefix=prefix)
        return listed + [upload for page in pages for upload in page.get("Uploads", ())]

    assert len(left("dropped")) >= 2 * 3 + 1 + 1, "versions, a marker, an upload"
    backend.drop("dropped")
    backend.drop("dropped")
    backend.drop("never made")
    assert left("dropped") == []
    assert other.get("key") == b"stays"
    backend.drop("dropped2")


def test_facts_are_read_back_and_add_up_to_the_settings_promise(shared, backend):
    shared.look()
    setting = registry.setting_of(type(backend), shared.target.backend, shared.target.setting)
    assert shared.promise == setting.promise
    facts = {fact.id: fact.value for fact in shared.facts}
    assert facts[promises.VERSIONING] == "Enabled"
    assert facts[promises.VENDOR] == shared.target.backend.removeprefix("s3-")
    assert any(name == promises.VERSION and value[0].isdigit() for name, value in facts.items())
    assert facts.get(promises.FSYNC) == ("true" if shared.target.setting == "versioned-fsync" else None)


def test_a_bucket_is_created_once(backend):
    with pytest.raises(Refused, match="created before"):
        backend.create()


def test_a_url_leads_to_the_same_objects_and_is_told_by_its_answers(shared, store, monkeypatch):
    keys_of(shared, monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")  # what the URL says wins
    assert registry.name_for_url(url_of(shared)) == "s3"
    found = registry.load("s3").from_url(url_of(shared))
    assert list(found.commands()) == []
    namespace = store._prefix.rstrip("/")
    store.put("key", b"value")
    there = found.open(client.unescape(namespace))
    assert (list(there.keys()), there.get("key")) == (["key"], b"value")
    assert isinstance(there, Versioned)
    assert isinstance(there, Conditional) == (shared.target.backend != "s3-swift")
    facts = list(found.inspect())
    assert {fact.id: fact.value for fact in facts}[promises.VENDOR] == shared.target.backend.removeprefix("s3-")
    # The filer, which knows whether files are synced, is not to be reached by a bucket's URL.
    assert found.promise(facts).tier == {"s3-swift": "T3", "s3-seaweedfs": "T1", "s3-moto": "T0"}[shared.target.backend]
    elsewhere = registry.load("s3").from_url(url_of(shared, "some/prefix"))
    assert elsewhere.open(client.unescape(namespace)).get("key") is None


def test_with_keys_that_are_wrong_no_value_is_said_to_be_absent(shared, store, monkeypatch):
    if shared.target.backend == "s3-moto":
        return  # it asks nobody who they are
    keys_of(shared, monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    wrong = registry.load("s3").from_url(url_of(shared))
    with pytest.raises(ClientError, match=r"403|Forbidden") as caught:
        wrong.open("namespace")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# After this test nothing in this file may rely on what was put before it.
def test_a_killed_server_is_another_one_and_keeps_what_it_acknowledged_unless_it_is_a_mock(shared):
    backend = shared.backend
    store, before = backend.open("killed"), backend.identity()
    assert backend.identity() == before == shared.identity
    values = {f"key-{number}": b"%d" % number * 500 for number in range(10)}
    for key, value in values.items():
        store.put(key, b"old")
        store.put(key, value)
    kill(shared)
    assert backend.identity() == shared.identity != before
    again = shared.backend.open("killed")
    if shared.target.backend == "s3-moto":
        assert (list(again.keys()), again.get("key-1")) == ([], None)
        return
    assert {key: again.get(key) for key in sorted(again.keys())} == values
    assert [value for _, value in again.versions("key-1")] == [values["key-1"], b"old"]
    assert shared.elsewhere("killed", "key-1") == values["key-1"]


@pytest.mark.parametrize("name", ["s3-seaweedfs", "s3-moto"])
def test_a_put_to_a_suspended_bucket_keeps_older_versions_except_in_the_mock(name, tmp_path):
    with service.running(name, "suspended", tmp_path / "run") as running:
        backend = running.backend
        versioned = type(backend)(registry.setting_of(type(backend), name, "versioned"), running.root, backend._port)
        assert [fact.value for fact in backend.inspect() if fact.id == promises.VERSIONING] == ["Suspended"]
        suspended, store = backend.open("n"), versioned.open("n")

        def switch(status):
            backend._bucket.client.put_bucket_versioning(
                Bucket=client.BUCKET, VersioningConfiguration={"Status": status}
            )

        switch("Enabled")
        store.put("key", b"1")
        store.put("key", b"2")
        switch("Suspended")
        suspended.put("key", b"3")
        suspended.put("key", b"4")
        assert suspended.get("key") == b"4"
        kept = [value for _, value in store.versions("key")]
        # S3 keeps versions that have an id; moto, and this is why it is not rated, does not.
        assert sorted(kept) == ([b"4"] if name == "s3-moto" else [b"1", b"2", b"4"])
        suspended.delete("key")
        assert suspended.get("key") is None
        backend.drop("n")
        assert backend._bucket.listed(backend._bucket.prefix("n")) == []


def test_nobody_on_the_port_is_not_ready_and_a_put_to_nobody_certainly_did_not_happen(tmp_path):
    for name in SERVERS:
        found = registry.load(name)
        backend = found(found.settings[0], tmp_path, lambda _: 1)
        asked = (partial(backend.open, "n"), backend.create, backend.identity, lambda b=backend: list(b.inspect()))
        for ask in asked:
            with pytest.raises(NotReady):
                ask()
        store = client.S3Store(backend._bucket, "n", versioned=True, conditional=True)
        for put in (store.put, store.put_if_absent):
            with pytest.raises(Refused):
                put("key", b"value")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://user:{SECRET}@bucket/prefix",
        f"s3://bucket/?endpoint_url=http://user:{SECRET}@127.0.0.1",
        f"s3://bucket/?endpoint_url=http://127.0.0.1:{SECRET}",
        f"s3:///?region={SECRET}",
        f"s3://bucket/#{SECRET}",
        "s3://bucket/?retries=5",
        f"http://{SECRET}/",
    ],
)
def test_a_url_that_is_none_is_an_error_that_shows_no_secret(url):
    with pytest.raises(ValueError, match=r"s3://|URL|endpoint_url") as caught:
        registry.load("s3").from_url(url)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert SECRET not in shown
    assert caught.value.__cause__ is None


def test_amazon_is_told_by_its_address_alone(monkeypatch):
    monkeypatch.setattr(client.Bucket, "server", lambda _self: "AmazonS3")
    monkeypatch.setattr(registry.load("s3"), "_swift_version", lambda _self: "")
    s3 = registry.load("s3")
    assert s3.from_url("s3://bucket/p?region=eu-west-1")._vendor()[0] == promises.AWS
    assert (
        s3.from_url("s3://b/?region=auto&endpoint_url=https://id.r2.cloudflarestorage.com")._vendor()[0] == promises.R2
    )
    for pretended in (
        "http://r2.cloudflarestorage.com.example.net",
        "http://amazonaws.com.example.net",
        "http://127.0.0.1:1",
    ):
        assert s3.from_url(f"s3://bucket/?region=a&endpoint_url={pretended}")._vendor()[0] == promises.UNKNOWN
    assert promises.promise([Fact(promises.VENDOR, promises.AWS, "endpoint")]).tier == "T3"
    assert promises.promise([Fact(promises.SERVER, "AmazonS3", "Server header")]).tier == "T0"


def test_servers_listen_on_this_machine_only_and_write_below_their_root(tmp_path):
    numbers = {}
    for name in SERVERS:
        found = registry.load(name)
        for setting in found.settings:
            for command in found(setting, tmp_path, lambda n: numbers.setdefault(n, 20000 + len(numbers))).commands():
                assert Path(command.argv[0]).is_absolute()
                text = " ".join(command.argv) + b"\n".join(command.files.values()).decode()
                assert "0.0.0.0" not in text
                assert all(not Path(file).is_absolute() for file in command.files)
    swift = registry.load("s3-swift")
    files = swift(swift.settings[0], tmp_path, lambda _: 1).commands()[0].files
    for server, text in files.items():
        assert server == "swift.conf" or b"bind_ip = 127.0.0.1" in text
