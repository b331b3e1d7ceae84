"""What a user of `durabench verify s3://…` relies on: against Swift and SeaweedFS, and against moto behind a door that
refuses, denies and pretends what real services do.
"""

import base64
import http.client
import http.server
import json
import re
import socket
import ssl
import subprocess
import threading
import traceback
import zlib
from contextlib import closing, contextmanager
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer

from durabench import service, verify
from durabench_backends import registry
from durabench_backends.contract import Domain, Fact, Goal, NotReady, Verifiable
from durabench_backends.s3 import anywhere, promises
from durabench_backends.s3.anywhere import S3
from durabench_backends.s3.probe import NAMESPACE

SECRET = "correct-horse"
DRIVE, SERVER, CLIENT = (Goal(domain) for domain in (Domain.DRIVE, Domain.SERVER, Domain.CLIENT))
HOP = ("connection", "transfer-encoding", "content-length", "server", "date")


@pytest.fixture(autouse=True)
def keys(monkeypatch, tmp_path_factory):
    """Keys where the AWS command line looks for them, and nothing else of this machine's."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REQUEST_CHECKSUM_CALCULATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


class Door:
    """An S3 service of somebody's: moto, behind a door that changes what it says."""

    def __init__(self, moto_port):
        self.moto_port = moto_port
        self.port = 0
        self.server = "SomeS3"
        self.denied = set()
        self.refuse = {}
        self.hides_moto = True
        self.takes_checksums = True
        self.verifies = True
        self.conditions = None
        self.asked = []
        self._buckets = 0

    def client(self, **options):
        return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.moto_port}", region_name="us-east-1", **options)

    def bucket(self, versioning=None, **options):
        """A fresh bucket, and its URL through the door."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self.client().create_bucket(Bucket=name, **options)
        if versioning:
            self.client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": versioning})
        return name, f"s3://{name}/ours?endpoint_url=http://127.0.0.1:{self.port}&region=us-east-1"

    def answer(self, method, path, headers, body):
        """(status, code) of a refusal, or None to let it through; may change headers."""
        parts = urlsplit(path)
        query = parse_qs(parts.query, keep_blank_values=True)
        self.asked.append((method, path))
        if self.hides_moto and parts.path.startswith("/moto-api"):
            return 404, "NoSuchKey"
        for word, refusal in self.refuse.items():
            if word in query or (word == "list" and "list-type" in query):
                return refusal
        if any(word in query for word in self.denied):
            return 403, "AccessDenied"
        checksum = headers.get("x-amz-checksum-crc32")
        if not self.takes_checksums and (checksum or "x-amz-trailer" in headers or "delete" in query):
            return 501, "NotImplemented"
        if self.verifies and checksum and checksum != base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode():
            return 400, "BadDigest"
        if self.conditions is not None and "if-none-match" in headers:
            self.conditions -= 1
            if self.conditions < 0:
                del headers["if-none-match"]
        return None


def handler_of(door):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def version_string(self):
            return door.server

        def log_message(self, *words):
            pass

        def do(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            refusal = door.answer(self.command, self.path, headers, body)
            if refusal:
                status, code = refusal
                text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                found = {"Content-Type": "application/xml"}
            else:
                with closing(http.client.HTTPConnection("127.0.0.1", door.moto_port)) as there:
                    there.request(self.command, self.path, body, headers)
                    answer = there.getresponse()
                    status, text = answer.status, answer.read()
                    found = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
            self.send_response(status)
            for name, value in found.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do  # noqa: N815 - the library calls these names

    return Handler


@pytest.fixture(scope="module")
def moto():
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def door(moto, keys):
    made = Door(moto)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made)) as server:
        server.daemon_threads = True
        made.port = server.server_address[1]
        made._buckets = made.port * 1000  # moto is shared by the tests
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()


@pytest.fixture
def amazon(door, monkeypatch):
    """The door, taken for Amazon's."""
    monkeypatch.setattr(anywhere, "AMAZON", ("127.0.0.1",))
    return door


def checks_of(url, goal=DRIVE):
    found = S3.from_url(url)
    facts = list(found.inspect())
    checks = list(found.checks(facts, goal))
    assert goal.is_met_by(found.promise(facts)) == (not decisive(checks))
    return {check.id.removeprefix("s3."): check for check in checks}


def probed(url):
    return {check.id.removeprefix("s3."): check for check in S3.from_url(url).probe(DRIVE)}


def decisive(checks):
    return {check.id.removeprefix("s3."): check.status for check in checks if check.status in ("fail", "unknown")}


def test_it_is_verifiable_and_has_a_page_for_every_check(door):
    _, url = door.bucket()
    assert isinstance(S3.from_url(url), Verifiable)
    made = {f"s3.{name}" for name in checks_of(url)}
    assert made | set(S3.probes) == set(S3.pages)
    assert not made & set(S3.probes)
    for name, page in S3.pages.items():
        assert all(word in page for word in ("Lost otherwise:", "Mend:", "Source:")), name


def test_a_good_deployment_raises_no_alarm(amazon):
    name, url = amazon.bucket("Enabled")
    amazon.client().put_object(Bucket=name, Key="ours/a", Body=b"1", ChecksumAlgorithm="CRC32")
    report = verify.verify(url, DRIVE)
    assert (report.verdict, report.exit_status, report.promise.tier) == ("held", 0, "T3")
    for goal in (DRIVE, SERVER, CLIENT):
        checks = checks_of(url, goal)
        assert {check.status for check in checks.values()} == {"ok"}, checks
    assert {check.status for check in probed(url).values()} == {"ok"}


def test_only_reads_are_sent_without_a_probe(amazon):
    _, url = amazon.bucket("Enabled")
    amazon.asked.clear()
    verify.verify(url, DRIVE)
    assert {method for method, _ in amazon.asked} <= {"GET", "HEAD"}


RULE = {"ID": "rule", "Status": "Enabled", "Filter": {"Prefix": ""}}


def with_rule(amazon, **rule):
    name, url = amazon.bucket("Enabled")
    rules = {"Rules": [{**RULE, **rule}]}
    amazon.client().put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=rules)
    return checks_of(url)["lifecycle"]


@pytest.mark.parametrize(
    "rule, status, said",
    [
        ({"Expiration": {"Days": 3}}, "warn", "expires objects after 3 days"),
        ({"Expiration": {"Days": 3}, "Filter": {"Prefix": "ours/some"}}, "warn", "expires objects after 3 days"),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 5}}, "warn", "expires older versions after 5 days"),
        ({"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}}, "ok", "ends unfinished uploads after 2 days"),
        ({"Expiration": {"Days": 3}, "Filter": {"Prefix": "theirs/"}}, "ok", "none"),
        ({"Expiration": {"Days": 3}, "Status": "Disabled"}, "ok", "none"),
    ],
)
def test_rules_that_remove_what_lies_under_the_prefix_are_told(amazon, rule, status, said):
    found = with_rule(amazon, **rule)
    assert (found.status, found.value) == (status, said)


@pytest.mark.parametrize("versioning, value", [(None, "Off"), ("Suspended", "Suspended")])
def test_versioning_that_is_not_enabled_warns_and_changes_no_verdict(amazon, versioning, value):
    name, url = amazon.bucket(versioning)
    report = verify.verify(url, DRIVE)
    found = next(check for check in report.checks if check.id == "s3.versioning")
    assert (found.status, found.value, report.exit_status) == ("warn", value, 0)
    assert f"--bucket {name} " in found.fix


def test_uploads_that_were_never_completed_and_objects_without_a_checksum_warn(amazon):
    name, url = amazon.bucket("Enabled")
    amazon.client().create_multipart_upload(Bucket=name, Key="ours/part")
    amazon.client().create_multipart_upload(Bucket=name, Key="theirs/part")
    plain = boto3.session.Config(request_checksum_calculation="when_required")
    amazon.client(config=plain).put_object(Bucket=name, Key="ours/a", Body=b"1")
    checks = checks_of(url)
    assert (checks["unfinished_uploads"].status, checks["unfinished_uploads"].value) == ("warn", "1")
    assert (checks["checksums"].status, checks["checksums"].value) == ("warn", "none")


def test_under_a_retention_a_probe_writes_nothing(amazon):
    name, url = amazon.bucket(ObjectLockEnabledForBucket=True)
    retention = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 9}}
    lock = {"ObjectLockEnabled": "Enabled", "Rule": retention}
    amazon.client().put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=lock)
    found = checks_of(url)["object_lock"]
    assert (found.status, found.value) == ("ok", "on, compliance for 9 days")
    amazon.asked.clear()
    assert {check.status for check in probed(url).values()} == {"skip"}
    assert {method for method, _ in amazon.asked} <= {"GET", "HEAD"}


@pytest.mark.parametrize(
    "word, name, action",
    [
        ("versioning", "versioning", "s3:GetBucketVersioning"),
        ("lifecycle", "lifecycle", "s3:GetLifecycleConfiguration"),
        ("object-lock", "object_lock", "s3:GetBucketObjectLockConfiguration"),
        ("uploads", "unfinished_uploads", "s3:ListBucketMultipartUploads"),
    ],
)
def test_what_the_keys_may_not_read_is_skipped_with_the_statement_that_grants_it(amazon, word, name, action):
    bucket, url = amazon.bucket("Enabled")
    amazon.denied = {word}
    report = verify.verify(url, DRIVE)
    found = next(check for check in report.checks if check.id == f"s3.{name}")
    assert (found.status, report.exit_status) == ("skip", 0)
    assert json.loads(found.fix) == {"Effect": "Allow", "Action": action, "Resource": f"arn:aws:s3:::{bucket}"}
    amazon.denied, amazon.refuse = set(), {word: (501, "NotImplemented")}
    assert "does not have it" in checks_of(url)[name].evidence


def test_a_mock_is_not_rated_however_it_is_hidden(door, moto):
    name, url = door.bucket("Enabled")
    door.hides_moto = False
    for there in (url, f"s3://{name}/?endpoint_url=http://127.0.0.1:{moto}&region=us-east-1"):
        report = verify.verify(there, DRIVE)
        assert (report.verdict, report.exit_status) == ("not rated", 3)
        assert next(check.value for check in report.checks if check.id == "s3.mock") == "moto"
        assert verify.verify(there, CLIENT).exit_status == 3
    assert S3.mock is False


@pytest.mark.parametrize("header", ["SomeS3", "AmazonS3", "Werkzeug/3.1 Python/3.13"])
def test_of_a_service_that_cannot_be_told_nothing_is_known_but_that_it_outlives_its_client(door, header):
    door.server = header
    _, url = door.bucket("Enabled")
    report = verify.verify(url, DRIVE)
    assert (report.verdict, decisive(report.checks)) == ("unknown", {"vendor": "unknown"})
    assert decisive(checks_of(url, CLIENT).values()) == {}


def test_a_probe_removes_what_it_wrote_and_what_a_killed_one_left_versions_too(amazon):
    name, url = amazon.bucket("Enabled")
    amazon.client().put_object(Bucket=name, Key="ours/theirs", Body=b"1")
    store = S3.from_url(url).open(NAMESPACE)
    store.put("left", b"1")
    store.put("left", b"2")
    for check in probed(url).values():
        assert "bytes in" in check.evidence
        assert "removed 2 versions that an earlier probe had left" in check.evidence
    found = amazon.client().list_object_versions(Bucket=name)
    assert [each["Key"] for each in found["Versions"]] == ["ours/theirs"]
    assert "DeleteMarkers" not in found


@pytest.mark.parametrize("conditions, value", [(0, "ignored"), (2, "8 of 8 at once won")])
def test_conditional_puts_that_are_ignored_or_not_atomic_warn(amazon, conditions, value):
    _, url = amazon.bucket()
    amazon.conditions = conditions
    found = probed(url)["conditional_writes"]
    assert (found.status, found.value) == ("warn", value)


def test_a_checksum_that_nobody_compares_warns(amazon):
    _, url = amazon.bucket()
    amazon.verifies = False
    assert probed(url)["checksum_verified"].status == "warn"


def test_a_server_that_rejects_default_checksums_is_told_by_the_cause(amazon, monkeypatch):
    name, url = amazon.bucket()
    amazon.takes_checksums = False
    found = probed(url)["default_checksums"]
    assert found.status == "warn"
    assert "AWS_REQUEST_CHECKSUM_CALCULATION=when_required" in found.fix
    assert "request_checksum_calculation=when_supported" in found.origin
    assert "Contents" not in amazon.client().list_objects_v2(Bucket=name), "removed without DeleteObjects"
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    assert probed(url)["default_checksums"].status == "ok"


def test_keys_that_may_not_write_make_no_probe_and_no_alarm(amazon, monkeypatch):
    _, url = amazon.bucket()
    answer = amazon.answer
    monkeypatch.setattr(amazon, "answer", lambda *asked: (403, "AccessDenied") if asked[0] == "PUT" else answer(*asked))
    found = probed(url)
    assert {check.status for check in found.values()} == {"skip"}
    assert all("s3:PutObject" in check.fix for check in found.values())


def said(url):
    """The line that a person gets, with its mend, and no secret anywhere."""
    report = verify.verify(url, DRIVE)
    assert (report.verdict, report.exit_status, list(report.checks)) == ("unknown", 3, [])
    assert report.unreached.count("\n") == 0
    with pytest.raises((NotReady, ValueError)) as caught:
        S3.from_url(url).inspect()
    assert caught.value.__notes__, "the mend"
    assert SECRET not in report.unreached + "".join(traceback.format_exception(caught.value))
    return report.unreached


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*words.split(), *files], check=True, capture_output=True)
    return folder


@contextmanager
def listening(serve=lambda accepted: None):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        kept = []

        def accept():
            while True:
                try:
                    kept.append(listener.accept()[0])
                    serve(kept[-1])
                except OSError:
                    if listener.fileno() < 0:
                        return

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in kept:
            each.close()


def test_a_bucket_that_cannot_be_looked_at_is_one_line_with_the_mend(door, certificate, monkeypatch):
    name, url = door.bucket()
    assert "there is no such bucket" in said(url.replace(name, "not-there"))
    for refusal, words in (
        ((403, "AccessDenied"), '"s3:ListBucket"'),
        ((403, "InvalidAccessKeyId"), "does not know this access key"),
        ((403, "SignatureDoesNotMatch"), "wrong secret key"),
        ((301, "PermanentRedirect"), "region"),
        ((503, "SlowDown"), "503 SlowDown"),
    ):
        door.refuse = {"list": refusal}
        assert words in said(url)
    door.refuse = {}
    there = f"127.0.0.1:{door.port}"
    assert "write endpoint_url=http://" in said(url.replace("http://", "https://"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def shake(accepted):
        context.wrap_socket(accepted, server_side=True)

    with listening(shake) as port:
        assert "https://" in said(url.replace(there, f"127.0.0.1:{port}"))
        secure = url.replace(f"http://{there}", f"https://localhost:{port}")
        assert "AWS_CA_BUNDLE" in said(secure)
    monkeypatch.setattr(anywhere, "ASK_S", 0.5)
    with listening() as port:
        assert "does not answer" in said(url.replace(there, f"127.0.0.1:{port}"))
    assert "no connection" in said(url.replace(there, f"127.0.0.1:{port}"))
    assert "no connection" in said(url.replace(there, "nobody.invalid"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "AWS_ACCESS_KEY_ID" in said(url)
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    assert "AWS_PROFILE" in said(url)


@contextmanager
def real(name, setting, folder, monkeypatch):
    """A server of the suite's own, as somebody reaches it by URL."""
    with service.running(name, setting, folder / "run") as running:
        options = running.backend._bucket.where.options
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["aws_access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["aws_secret_access_key"])
        monkeypatch.setattr(registry.load("s3"), "mock", False)
        yield f"s3://durabench/ours?endpoint_url={options['endpoint_url']}&region=us-east-1"


@pytest.fixture
def load(over_and_over):
    """Somebody who writes to a bucket all the time."""

    def writing(url):
        store = S3.from_url(url).open("load")
        return over_and_over(lambda: store.put("key", b"x" * 2000))

    return writing


def test_swift_holds_under_load(tmp_path, monkeypatch, load):
    with real("s3-swift", "versioned", tmp_path, monkeypatch) as url:
        with load(url):
            report = verify.verify(url, DRIVE)
            assert (report.verdict, report.promise.tier) == ("held", "T3")
            assert not [
                check for check in checks_of(url).values() if check.status == "warn" and check.id != "s3.checksums"
            ]
        found = probed(url)
        assert decisive(found.values()) == {}
        assert re.search(r"wrote \d+ bytes in \d+ puts, removed again", found["conditional_writes"].evidence)


def test_of_seaweedfs_whether_it_syncs_cannot_be_told_by_s3(tmp_path, monkeypatch, load):
    with real("s3-seaweedfs", "versioned", tmp_path, monkeypatch) as url:
        with load(url):
            report = verify.verify(url, DRIVE)
            assert (report.verdict, decisive(report.checks)) == ("unknown", {"vendor": "unknown"})
            assert "fs.configure" in next(check.fix for check in report.checks if check.id == "s3.vendor")
            assert verify.verify(url, SERVER).verdict == "held"
        found = probed(url)
        assert found["conditional_writes"].status == "ok"
        assert found["default_checksums"].status == "ok"


VALUES = {
    promises.VENDOR: ["swift", "seaweedfs", "moto", "localstack", "aws", "unknown", "nonsense"],
    promises.FSYNC: ["true", "false"],
    promises.VERSIONING: ["Off", "Enabled", "Suspended"],
    promises.LIFECYCLE: ["none", "expires objects after 1 days"],
    promises.CHECKSUMS: ["none", "CRC32"],
}
UNREAD, MISSING = object(), object()
drawn = st.fixed_dictionaries({name: st.sampled_from([*values, UNREAD, MISSING]) for name, values in VALUES.items()})
goals = st.builds(Goal, st.sampled_from([Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE]))


@given(drawn, goals)
def test_a_check_fails_or_is_unknown_exactly_where_the_promise_misses_the_goal(values, goal):
    facts = [
        Fact(name, "", "", "not allowed; a statement") if value is UNREAD else Fact(name, value, "drawn")
        for name, value in values.items()
        if value is not MISSING
    ]
    vendor = values[promises.VENDOR]
    facts.append(Fact(promises.MOCK, vendor if vendor in promises.MOCKS else "no", "drawn"))
    checks = list(S3.checks(facts, goal))
    assert len({check.id for check in checks}) == len(checks)
    assert goal.is_met_by(S3.promise(facts)) == (not decisive(checks))
