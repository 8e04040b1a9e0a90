"""Whatever is raised while a checkpoint is read becomes a sentence, and what may be our own fault is logged in full."""

import json
import logging
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.errors import ModelLoadError, ModelMemoryError


def told(error: Exception) -> ModelLoadError:
    with pytest.raises(ModelLoadError) as caught, load_errors("model x"):
        raise error
    return caught.value


def test_what_may_be_a_fault_of_the_program_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert str(told(KeyError("layers"))) == "model x: KeyError: 'layers'"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


@pytest.mark.parametrize(
    "error", [ValueError("is bad"), OSError("is bad"), RuntimeError("is bad"), ModelLoadError("model x: is bad")]
)
def test_what_says_all_is_not(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert str(told(error)) == "model x: is bad"
    assert not caplog.records


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 4 bytes"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_lack_of_memory_is_an_error_of_its_own(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    refusal = told(error)
    assert type(refusal) is ModelMemoryError
    assert str(refusal).startswith("model x: there is not enough memory for it")
    assert not caplog.records


TARGET = Path(__file__).resolve().parents[4] / "models" / "target" / "tokenizer.json"


@pytest.mark.parametrize("charsmap", ["", "AAAA", "CAAAAAEBAQEB"])
def test_a_panic_of_a_library_in_rust_is_an_error_like_any_other(charsmap: str) -> None:
    """It is no Exception, and ended the verifier that was to attach a drafter of this tokenizer."""
    parts = json.loads(TARGET.read_text()) | {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
    }
    with pytest.raises(ModelLoadError, match=r"^model x: (Precompiled|index)"), load_errors("model x"):
        Tokenizer.from_str(json.dumps(parts)).encode("a text")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_passes(error: type[BaseException]) -> None:
    with pytest.raises(error), load_errors("model x"):
        raise error


def test_code_of_a_checkpoint_names_the_flag_that_permits_it() -> None:
    said = (
        "The repository /m contains custom code which must be executed to correctly load the model. You can inspect "
        "the repository content at /m .\nPlease pass the argument `trust_remote_code=True` to allow it to be run."
    )
    assert "only if --trust-remote-code permits it" in str(told(ValueError(said)))
