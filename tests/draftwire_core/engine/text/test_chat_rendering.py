"""Variables that chat templates read."""

import pytest

from draftwire_core.engine.text.chat_rendering import template_variables


def test_variables_besides_those_of_every_rendering() -> None:
    template = "{% generation %}{{ messages }}{% endgeneration %}{% set own = 1 %}{{ own }}{{ enable_thinking }}"
    assert template_variables(template) == {"enable_thinking"}


@pytest.mark.parametrize(
    "template",
    [
        "{{ a | no_such_filter }}",
        "{% block a %}{{ b }}{% endblock %}{% block a %}{% endblock %}",
        "{{ " + "(" * 5000 + "a" + ")" * 5000 + " }}",
        "{{ " + "a + " * 5000 + "a }}",
        "{% if",
    ],
    ids=["filter", "block", "parentheses", "sum", "syntax"],
)
def test_a_template_that_cannot_be_compiled_has_none(template: str) -> None:
    assert template_variables(template) == frozenset()
