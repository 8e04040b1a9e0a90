import pytest

from draftwire_core.runtime.process.trace_export import TraceExport, check_endpoint


@pytest.mark.parametrize("endpoint", ["", "http://localhost:4317", "https://tempo.example:443", "http://[::1]:4317/"])
def test_addresses_of_collectors(endpoint: str) -> None:
    assert check_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:4317",
        "http://localhost",
        "ftp://localhost:21",
        "http://:4317",
        "http://localhost:x",
        "http://localhost:4318/v1/traces",
        "http://me:secret@localhost:4317",
    ],
)
def test_what_is_no_address(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be http://HOST:PORT"):
        check_endpoint(endpoint)


def test_closing_gives_up_on_a_collector_that_is_gone() -> None:
    export = TraceExport("http://127.0.0.1:1", 1.0, "draftwire-test")
    export.tracer.start_span("lost").end()
    export.close(0.1)
    export.tracer.start_span("after the end").end()
