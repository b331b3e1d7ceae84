"""URLs as people write them: where the login ends, and the same escaped, so that any client reads what was meant."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabench_backends import registry, urls
from durabench_backends.redis.adapter import Redis, Valkey

PASSWORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=200).filter(
    lambda one: not re.search("%[0-9A-Fa-f]{2}", one)
)
WITHOUT_AT = PASSWORDS.filter(lambda one: not re.match(r"\d*[?/#]", one) and "@" not in one)


@given(secret=PASSWORDS)
def test_an_escaped_password_is_read_by_the_letter(secret):
    url = f"postgresql://ann:{quote(secret, safe='')}@[::1]:5432/d?application_name=me@home&options=-c%20x"
    found = urls.split(url)
    assert (found.user, unquote(found.password)) == ("ann", secret)
    assert found.rest == "[::1]:5432/d?application_name=me@home&options=-c%20x"
    assert str(found) == url
    assert urls.escaped(url) == url


@given(secret=WITHOUT_AT)
def test_a_pasted_password_is_read_as_it_was_meant(secret):
    url = f"redis://ann:{secret}@db.example:6379/0"
    assert urls.split(url).password == secret
    read = urlsplit(urls.escaped(url))
    assert (read.hostname, read.port, read.path, unquote(read.password)) == ("db.example", 6379, "/0", secret)
    assert urls.escaped(urls.escaped(url)) == urls.escaped(url)


@pytest.mark.parametrize("secret", ["a@b", "a@b@", "12/3@4", "?#@", "a@b/c@d", "x?y=z@w&q", "@@@", "é'\"<>;, [%"])
def test_also_with_an_at_in_it(secret):
    url = f"postgresql://ann:{secret}@127.0.0.1:1/d"
    assert urls.split(url).password == secret
    assert urlsplit(urls.escaped(url)).hostname == "127.0.0.1"


@pytest.mark.parametrize(
    "url",
    [
        *("sqlite:////data/a@b.db?journal_mode=wal", "file:///data/x@y?write=rename", "redis://h:1/0"),
        *("postgresql://h/d?application_name=me@home", "postgresql://h1:1,h2:2/d", "s3://bucket/path?region=x"),
        "postgresql://h/d?user=ann&password=p@ss",
    ],
)
def test_what_has_no_login_has_none(url):
    assert urls.split(url)[1:3] == (None, None)
    assert urls.escaped(url) == url


def test_what_is_no_url_is_none():
    assert urls.split("postgres:on") is None
    assert urls.escaped("postgres:on") == "postgres:on"


def test_a_client_takes_the_password_from_its_own_variable(monkeypatch):
    """As redis-cli and valkey-cli do, and only where the URL has none."""
    assert registry.password_variables("postgresql://h") == ("PGPASSWORD",)
    monkeypatch.setenv("REDISCLI_AUTH", "mine")
    for backend, scheme in ((Redis, "redis"), (Valkey, "valkey")):
        assert backend.from_url(f"{scheme}://h")._at["password"] == "mine"
        assert backend.from_url(f"{scheme}://:url@h")._at["password"] == "url"
    monkeypatch.setenv("VALKEYCLI_AUTH", "valkey's")
    assert Valkey.from_url("valkey://h")._at["password"] == "valkey's"
    assert Redis.from_url("redis://h")._at["password"] == "mine"
