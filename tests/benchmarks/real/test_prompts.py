"""The prompts of the real models."""

from collections import Counter

import pytest

from benchmarks.real.prompts import TASKS, real_prompts


def test_there_are_twenty_of_each_task_and_all_differ() -> None:
    prompts = real_prompts(20)
    assert Counter(each.task for each in prompts) == dict.fromkeys(TASKS, 20)
    assert len({each.text for each in prompts}) == len(prompts)
    assert len({(each.task, each.name) for each in prompts}) == len(prompts)
    assert all(each.text == each.text.strip() for each in prompts)


def test_edits_carry_the_text_and_questions_two_passages() -> None:
    lengths = {task: [len(each.text.split()) for each in real_prompts(20) if each.task == task] for task in TASKS}
    assert min(lengths["edit"]) > 20
    assert min(lengths["summary"]) > 150
    assert min(lengths["retrieval"]) > 300
    assert max(lengths["chat"]) < 40


def test_fewer_prompts_are_the_first_of_each_task() -> None:
    whole = real_prompts(20)
    assert real_prompts(3) == [each for number, each in enumerate(whole) if number % 20 < 3]
    for count in (0, 21):
        with pytest.raises(ValueError, match=f"1 to 20 of each task, got {count}"):
            real_prompts(count)
