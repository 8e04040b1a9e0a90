import pytest

from draftwire_core.runtime.process.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:50051", "localhost", 50051), ("0.0.0.0:0", "0.0.0.0", 0), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_read_and_written(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert str(Address(host, port)) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1", "::1:5", "[host]x:1", "a b:1"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        Address.parse(text)
