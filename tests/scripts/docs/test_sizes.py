"""The size and the shape of the product stay within the limits of docs/architecture.md."""

import pytest

from scripts.docs import sizes

MOST_SMALL = 39
MOST_SDK_LINES = 8_000


@pytest.mark.slow
class TestSyntax:
    """What is found in the syntax of all files, which takes seconds to read."""

    def test_no_imports_run_in_a_circle(self) -> None:
        assert [sizes.in_circles(graph) for graph in sizes.graphs()] == [set(), set()]

    def test_no_class_is_too_large(self) -> None:
        assert sizes.large_classes() == []

    def test_a_public_class_has_a_name_of_its_own(self) -> None:
        assert sizes.repeated_classes() == []


def test_circles_and_floors_are_counted() -> None:
    graph = {"top": {"a"}, "a": {"b"}, "b": {"a", "base"}, "base": set[str]()}
    assert sizes.in_circles(graph) == {"a", "b"}
    assert sizes.floors({**graph, "b": {"base"}}) == 4


def test_no_folder_is_crowded() -> None:
    assert sizes.crowded_folders() == []


def test_few_files_are_small() -> None:
    small = [each.path.as_posix() for each in sizes.product() if each.is_small]
    assert len(small) <= MOST_SMALL, small


def test_the_sdk_is_small() -> None:
    lines = sum(each.lines for each in sizes.product() if each.path.parts[:2] == ("sdk", "draftwire"))
    assert lines <= MOST_SDK_LINES


def test_the_documents_are_short() -> None:
    assert sizes.words_of_docs() <= 90_000
