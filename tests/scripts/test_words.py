"""The words of code, help texts, contract and documents: the rules hold, and planted faults are found."""

import pytest

from scripts.words import ROOT, WORDS, checked_files, files_of, findings, main

pytestmark = pytest.mark.processes  # git lists the files


def test_the_checkout_keeps_to_the_rules() -> None:
    found = [each for file in checked_files() for each in findings(file, (ROOT / file).read_text(encoding="utf-8"))]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("file", "text", "line", "word"),
    [
        ("a.py", '"""Steps.\n\nA wide tree is dear.\n"""\n', 3, "dear"),
        ("a.py", "x = 1  # brings 9 percent\n", 1, "brings"),
        ("a.py", 'raise ValueError(f"{name}: key is there twice")\n', 1, "is there twice"),
        ("a.py", 'log.warning("heartbeat stayed out")\n', 1, "stayed out"),
        ("a.py", 'HELP = "Whoever calls is refused."\n', 1, "Whoever"),
        ("a.proto", "// The same bits in any company.\nmessage A {}\n", 1, "company"),
        ("a.md", "# Drafters\n\nThe status tells it.\n", 3, "tells"),
    ],
)
def test_words_are_found(file: str, text: str, line: int, word: str) -> None:
    assert [(each.line, each.found) for each in findings(file, text)] == [(line, word)]


@pytest.mark.parametrize(
    ("file", "text", "line", "word"),
    [
        ("a.py", '"""What a step reads."""\n', 1, "What"),
        ("a.py", 'class A:\n    x: int\n    """Its number."""\n', 3, "Its"),
        ("a.proto", "message A {\n  // Those that are kept.\n  // Its rest is free.\n  int32 a = 1;\n}\n", 2, "Those"),
        ("a.md", "text\n\n## Where to begin\n", 3, "Where"),
    ],
)
def test_texts_that_do_not_make_sense_alone_are_found(file: str, text: str, line: int, word: str) -> None:
    assert [(each.line, each.found) for each in findings(file, text)] == [(line, word)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.py", "told = company(beside, dear)\n"),
        ("a.py", 'log.info(f"{tells}")  # a number tells them apart\n'),
        ("a.py", '"""Heartbeats do not bring a drafter back."""\n'),
        ("a.md", "Its tokens are kept.\n"),
        ("a.md", "# What does it cost?\n\n*expensive* instead of *dear*\n"),
    ],
)
def test_names_and_idioms_are_left_alone(file: str, text: str) -> None:
    assert list(findings(file, text)) == []


def test_each_word_has_another() -> None:
    assert all(word.instead for word in WORDS)


def test_files_and_folders_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(files_of("scripts/words.py")) == ["scripts/words.py"]
    listed = list(files_of("tests/scripts"))
    assert "tests/scripts/test_words.py" in listed and all(file.startswith("tests/scripts/") for file in listed)
    assert list(files_of(str(ROOT / "tests/scripts"))) == listed
    assert set(checked_files()) <= set(files_of("."))
    assert main(["scripts", "scripts/generate_sync.py"]) == 0
    assert main(["tests/scripts"]) == 1 and "test_words.py:" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "said"), [("scripts/nowhere", "no such file or folder"), ("/", "not a folder of")])
def test_paths_that_are_none(path: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([path])
    assert f"{path}: {said}" in capsys.readouterr().err
