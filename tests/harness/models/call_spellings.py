"""Spellings of calls, as clients receive them for the families of models."""

from draftwire import CallSpelling, ChatFormat

QWEN_3_5 = CallSpelling(
    "parameters",
    call_begin="<tool_call>\n<function=",
    name_end=">",
    key_begin="\n<parameter=",
    key_end=">\n",
    value_end="\n</parameter>",
    call_end="\n</function>\n</tool_call>",
    separator="\n",
)
GLM_4_5 = CallSpelling(
    "parameters",
    call_begin="<tool_call>",
    key_begin="\n<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    value_end="</arg_value>",
    call_end="\n</tool_call>",
    separator="\n",
)
GEMMA_4 = CallSpelling("bare_keys", call_begin="<|tool_call>call:", call_end="<tool_call|>", quote='<|"|>')
LFM_2 = CallSpelling("keywords", begin="<|tool_call_start|>[", separator=", ", end="]<|tool_call_end|>")
COMMAND_A = CallSpelling(
    "object",
    begin="<|START_ACTION|>[",
    call_begin="\n    ",
    separator=",",
    end="\n]<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
)
JSON = CallSpelling("json", call_begin="<function=", name_end=">", call_end="</function>")


def spelled(spelling: CallSpelling) -> ChatFormat:
    """Returns the format of answers with this spelling, without reasoning."""
    return ChatFormat("spelled", spelling=spelling)
