"""The caller that a call is counted for."""

import pytest

from draftwire_core.runtime.security.caller import Caller, peer_host, peer_name, set_caller
from draftwire_core.runtime.security.roles import Role


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:4242", "127.0.0.1"),
        ("ipv6:%5B2001:db8::7%5D:4242", "2001:db8::7"),
        ("ipv6:[::1]:4242", "::1"),
        ("unix:/run/verifier.sock", "unix:/run/verifier.sock"),
        ("unix:", "unix:"),
    ],
)
def test_hosts(peer: str, host: str) -> None:
    assert peer_host(peer) == peer_name(peer) == host


def test_a_token_counts_from_wherever_it_calls() -> None:
    set_caller(Caller("alice", frozenset({Role.DRAFT})))
    try:
        assert peer_name("ipv4:10.0.0.7:1") == peer_name("ipv4:10.0.0.8:1") == "alice"
    finally:
        set_caller(None)
