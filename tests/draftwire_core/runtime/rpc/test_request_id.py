import pytest

from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.request_id import given_request_id


def test_the_message_comes_before_the_metadata() -> None:
    metadata = [("user-agent", "grpc"), ("x-request-id", "theirs")]
    assert given_request_id("mine", metadata) == "mine"
    assert given_request_id("", metadata) == "theirs"
    assert given_request_id("", [("x-request-id-bin", b"x")]) == ""


@pytest.mark.parametrize("name", ["a b", "a\nb", "ü", "x" * 257, "\x7f"])
def test_what_no_line_can_show_is_refused(name: str) -> None:
    with pytest.raises(ServiceError, match=r"^request_id: must be 1 to 256 visible ASCII"):
        given_request_id(name, ())
    with pytest.raises(ServiceError) as caught:
        given_request_id("", [("x-request-id", name)])
    assert [violation.field for violation in caught.value.field_violations] == ["x-request-id"]


def test_the_longest_name_is_taken() -> None:
    assert given_request_id("~" * 256, ()) == "~" * 256
