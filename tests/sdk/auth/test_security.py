"""Credentials of a client: to whom it sends them, and that it keeps them secret."""

from pathlib import Path

import pytest

from draftwire import AsyncClient, Client, Tls, TokenFile
from draftwire._auth.security import Security
from draftwire._types.address import is_loopback
from tests.harness.certificates import Authority

SECRET = "a-secret-0123456789"


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("unix:/run/draftwire.sock", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
        ("[::]:1", False),
        ("[2001:db8::1]:1", False),
        ("verifier:50051", False),
        ("localhost.example.org:1", False),
        ("127.0.0.1.example.org:1", False),
    ],
)
def test_loopback(address: str, local: bool) -> None:
    assert is_loopback(address) is local


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_another_machine_in_the_clear_only_where_it_is_allowed(kind: type[Client], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gpu-1:50051 is on another machine.*--tls-ca.*--insecure"):
        kind(["localhost:50051", "gpu-1:50051"], token=SECRET)
    kind("gpu-1:50051", token=SECRET, insecure=True)
    kind("gpu-1:50051", token=SECRET, tls=Tls(Authority(tmp_path).file))


def test_an_address_of_a_call_is_looked_at_too() -> None:
    with (
        Client("localhost:1", token=SECRET) as client,
        pytest.raises(ValueError, match="gpu-2:50052 is on another machine"),
    ):
        client.drafters.load_state("gpu-2:50052")


def test_wrong_tls_is_told_at_once(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("client", "c.internal")
    with pytest.raises(ValueError, match="cert and key require each other"):
        Tls(cert=pair.cert)
    with pytest.raises(ValueError, match=r"nowhere\.pem: No such file"):
        Client(tls=Tls(tmp_path / "nowhere.pem"))
    with pytest.raises(ValueError, match=r"client\.key contains no certificates"):
        Client(tls=Tls(pair.key))


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ümlaut", SECRET + "\n"])
def test_a_token_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(ValueError, match="a token must be one word") as refused:
        Client(token=token)
    assert not token or token not in str(refused.value)


def test_a_token_comes_from_a_file_that_may_change(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    source = TokenFile(path)
    security = Security(token=source)
    assert security.metadata() == (("authorization", f"Bearer {SECRET}"),)
    path.write_text("")
    assert source() == SECRET
    path.write_text("\ufeffanother-token-entirely\r\n", "utf-8")  # as editors of Windows write it
    assert security.metadata() == (("authorization", "Bearer another-token-entirely"),)
    assert SECRET not in repr(source) + repr(security) and str(path) in repr(source)


def test_a_file_without_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ValueError, match=f"cannot read {path}"):
        TokenFile(path)
    path.write_text("not one word")
    with pytest.raises(ValueError, match=str(path)) as refused:
        TokenFile(path)
    assert "not one word" not in str(refused.value)
