"""Chat templates that spell tools as those of the known families do, and the bundled target with one of them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.harness.checkout import MODELS

_TURN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
_LIST = (
    "{%- if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n"
    "{%- endif %}"
)

HERMES = (
    _LIST + "{%- for message in messages %}{%- if message.tool_calls %}<|im_start|>assistant"
    "{%- if message.content %}\n{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{%- elif message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "<|im_end|>\n{%- else %}" + _TURN + "{%- endif %}{%- endfor %}<|im_start|>assistant\n"
)
QWEN_3 = HERMES.replace(
    "<|im_start|>assistant{%- if message.content %}",
    "<|im_start|>assistant{%- if message.reasoning_content %}\n<think>\n{{ message.reasoning_content }}\n</think>\n"
    "{%- endif %}{%- if message.content %}",
)
THINKING = HERMES + "<think>\n{# </think> ends it #}"
"""Its prompt ends within the reasoning."""
LLAMA_3 = (
    "{%- for message in messages %}{%- if message.tool_calls %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    "{%- if message.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    '{"name": "{{ message.tool_calls[0].function.name }}", '
    '"parameters": {{ message.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{%- elif message.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ message.content }}<|eot_id|>"
    "{%- else %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{%- if tools and loop.first %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{% endif %}"
    "{{ message.content }}<|eot_id|>{%- endif %}{%- endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
_MISTRAL = (
    "{%- if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{%- for message in messages %}{%- if message.tool_calls is defined %}CALLS"
    "{%- elif message.role == 'tool' %}"
    "{%- if message.tool_call_id | length != 9 %}{{ raise_exception('ids of calls need nine letters') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]'
    "{%- elif message.role == 'user' %}[INST] {{ message.content }}[/INST]{%- else %} {{ message.content }}</s>"
    "{%- endif %}{%- endfor %}"
)
MISTRAL = _MISTRAL.replace(
    "CALLS",
    "[TOOL_CALLS] [{%- for call in message.tool_calls %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{%- if not loop.last %}, {% endif %}{%- endfor %}]</s>",
)
MISTRAL_ARGS = _MISTRAL.replace(
    "CALLS",
    "{%- for call in message.tool_calls %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{%- endfor %}</s>",
)
HARMONY = (
    "{%- if tools %}<|start|>developer<|message|># Tools\n\nnamespace functions {\n{% for tool in tools %}"
    "// {{ tool.function.description }}\ntype {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }})"
    " => any;\n{% endfor %}}<|end|>{% endif %}"
    "{%- for message in messages %}{%- if message.tool_calls %}"
    "{%- if message.content and message.thinking %}{{ raise_exception('content and thinking') }}{% endif %}"
    "{%- if message.content %}<|start|>assistant<|channel|>analysis<|message|>{{ message.content }}<|end|>{% endif %}"
    "{%- if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ message.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ message.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{%- elif message.role == 'tool' %}<|start|>functions.{{ message.name }} to=assistant<|channel|>commentary"
    "<|message|>{{ message.content | tojson }}<|end|>"
    "{%- elif message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>"
    "{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{%- endif %}{%- endfor %}"
    "<|start|>assistant"
)
QWEN_3_CODER = HERMES.replace(
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
    "<function={{ call.function.name }}>{{ call.function.arguments | tojson }}</function>",
)
"""A spelling that no family has, found in the template alone."""
UNKNOWN = HERMES.replace("<tool_call>", "Call").replace("</tool_call>", "")
"""A spelling that is not known."""
WITHOUT_TOOLS = "{%- for message in messages %}" + _TURN + "{%- endfor %}<|im_start|>assistant\n"


GEMMA = (
    "{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{%- for message in messages %}{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ message.role }}\n{{ message.content }}<end_of_turn>\n{%- endfor %}<start_of_turn>model\n"
)
"""No tools, no system message, and turns that alternate."""
_FAMILIES = Path(__file__).parent / "tool_templates"


def family(name: str) -> str:
    """Returns the chat template of a family of models (`tool_templates`)."""
    return (_FAMILIES / f"{name}.jinja").read_text()


def target_with_template(
    directory: Path, template: str, special: Sequence[str] = (), added: Sequence[str] = ()
) -> Path:
    """Writes the bundled target with another chat template. special, added: tokens of their own that it gets, special
    ones and others, each in place of one of the vocabulary's last tokens."""
    source = MODELS / "target"
    directory.mkdir()
    for path in source.iterdir():
        if path.name.startswith("tokenizer"):
            shutil.copy(path, directory)
        else:
            (directory / path.name).symlink_to(path)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    names = {token: name for name, token in tokenizer["model"]["vocab"].items()}
    last = max(names) + 1
    for token, name in enumerate((*special, *added), last - len(special) - len(added)):
        gone = names.pop(token)
        del tokenizer["model"]["vocab"][gone]
        tokenizer["model"]["merges"] = [each for each in tokenizer["model"]["merges"] if "".join(each) != gone]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": token, "content": name, "special": name in special, **flags})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return directory
