"""Addresses as text and back."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.cli.address import route_to
from reknit.core.address import join, split
from reknit.core.address_family import family_of
from reknit.core.broker import Broker
from reknit.core.errors import UsageError
from support.ipv6 import ipv6_here

WRITTEN = [
    ("127.0.0.1:80", ("127.0.0.1", 80)),
    ("node-7.example.org:4222", ("node-7.example.org", 4222)),
    (" h:1 ", ("h", 1)),
    ("[::1]:65535", ("::1", 65535)),
    ("[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
]


@pytest.mark.parametrize(("text", "address"), WRITTEN)
def test_with_a_port(text: str, address: tuple[str, int]) -> None:
    assert split(text) == address
    assert split(text, 9) == address
    assert join(*address) == text.strip()


@pytest.mark.parametrize(("text", "host"), [("h", "h"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("[::1]", "::1")])
def test_without_a_port(text: str, host: str) -> None:
    assert split(text, 4222) == (host, 4222)
    with pytest.raises(UsageError, match="no port"):
        split(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no host"),
        (":80", "no host"),
        ("h:", "no port"),
        ("h:x", "'x' is no port number"),
        ("h:0", "'0' is no port number"),
        ("h:65536", "no port number"),
        ("h:-1", "no port number"),
        ("h:\u0664", "no port number"),
        ("[::1", "bracket is not closed"),
        ("[::1]80", "bracket is not closed"),
        ("[::1]:", "brackets"),
        ("[h]:80", "brackets stand round an IPv6 address"),
        ("a b:80", "no host"),
        ("nats://h:80", "'//h:80'|no host"),
        ("u@h:80", "no host"),
        ("a:b:c", "no IPv6 address"),
        ("[1:2]:3", "no IPv6 address"),
    ],
)
def test_what_is_no_address_is_said(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        split(text, 1)
    assert "HOST:PORT" in caught.value.hint


hosts = st.one_of(
    st.from_regex(r"[a-z0-9][a-z0-9.-]{0,30}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)


@given(hosts, st.integers(1, 65535))
def test_back_is_what_was(host: str, port: int) -> None:
    assert split(join(host, port)) == (host, port)


def test_the_family_of_a_host() -> None:
    assert family_of("127.0.0.1") == socket.AF_INET
    assert family_of("::1") == socket.AF_INET6
    assert family_of("localhost") in {socket.AF_INET, socket.AF_INET6}


ipv6 = pytest.mark.skipif(not ipv6_here(), reason="no IPv6 loopback here")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=ipv6)])
def test_the_own_address_is_the_one_on_the_route_to_the_broker(host: str) -> None:
    assert route_to(f"nats://{join(host, 4222)}") == host


def test_a_name_that_does_not_resolve_is_no_error_here() -> None:
    assert route_to("nats://no-such-host.invalid:4222") == "127.0.0.1"


@ipv6
def test_a_broker_on_ipv6(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", host="::1")
    try:
        endpoint = broker.start()
        assert endpoint.url.startswith("nats://[::1]:")
    finally:
        broker.stop()
