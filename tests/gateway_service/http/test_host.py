"""Hosts, and texts that only look like one."""

import pytest

from gateway_service.http.host_check import host_of, is_origin


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST.:8000", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("chat.example:443", "chat.example"),
        ("[::1]", "::1"),
        ("[::1]:8000", "::1"),
        ("[0:0:0:0:0:0:0:1]:80", "::1"),
        ("[FD00::1]", "fd00::1"),
    ],
)
def test_a_host_perhaps_with_a_port(text: str, host: str) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "", ":80", "localhost:", "localhost:80:80", "localhost:http", "localhost:123456", "localhost:99999",
        "localhost:80@evil.example",
        "evil.example@localhost", "[::1].evil.example", "[::1]evil.example", "[::1", "::1", "[]", "[localhost]",
        "[::1%25lo]", "localhost/", "localhost /x", " localhost", "localhost\t", "local host", "localhost,evil.example",
        "localhost#", "-localhost", "locаlhost", "x" * 300,
    ],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    assert host_of(text) is None


@pytest.mark.parametrize(
    "text",
    ["https://chat.example", "http://localhost:3000", "http://[::1]:8080", "http://10.0.0.1", "app://local-name"],
)
def test_an_origin(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "://", "https://", "chat.example", "https://chat.example/", "https://chat.example:443", "http://a:80",
        "HTTPS://chat.example", "https://Chat.example", "https://a@b", "http://a:99999", "null", "http://a b",
    ],
)  # fmt: skip
def test_what_browsers_send_for_none(text: str) -> None:
    assert not is_origin(text)
