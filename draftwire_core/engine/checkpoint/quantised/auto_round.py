"""The format of AutoRound, which packs weights as AutoGPTQ, GPTQModel or AutoAWQ do."""

from __future__ import annotations

from draftwire_core.engine.checkpoint.quantised.awq import Awq
from draftwire_core.engine.checkpoint.quantised.fields import OF_TOOLS, Fields
from draftwire_core.engine.checkpoint.quantised.gptq import Gptq
from draftwire_core.engine.checkpoint.quantised.stored_format import StoredFormat
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_GPTQ = {"auto_round:auto_gptq": "gptq", "auto_round:gptq": "gptq"}
_GPTQ |= {"auto_round": "gptq_v2", "auto_round:gptqmodel": "gptq_v2"}
"""The format of GPTQ of each way to pack."""
_AWQ = ("auto_round:auto_awq", "auto_round:awq")
_READ = ("bits", "group_size", "sym")
_UNQUANTISED = (16, 32)
_KNOWN = OF_TOOLS | {"quant_method", "packing_format", "extra_config", "data_type", *_READ}
_KNOWN |= {"act_bits", "act_data_type", "act_group_size", "act_sym", "act_dynamic"}  # how inputs are to be quantised


def auto_round(fields: Fields, files: TensorFiles) -> StoredFormat:
    """Returns the format of a checkpoint with quantisation method "auto-round". Raises ModelLoadError for a
    configuration that is not supported."""
    fields.nothing_but(_KNOWN)
    packing = fields.one_of("packing_format", (None, *_GPTQ, *_AWQ)) or next(iter(_GPTQ))
    fields.one_of("data_type", (None, "int"))
    if fields["act_bits"] is not None:
        fields.one_of("act_bits", (8, *_UNQUANTISED))
    if fields["extra_config"]:
        layers = fields.part("extra_config")
        for name in layers.names():
            layer = layers.part(name)
            if layer.one_of("bits", (None, fields["bits"], *_UNQUANTISED)) in _UNQUANTISED:
                continue  # its tensors show it
            for own in _READ:
                layer.one_of(own, (None, fields[own]))
    given = {own: fields[own] for own in _READ}
    if packing in _AWQ:
        return Awq(fields.like({"bits": given["bits"], "group_size": given["group_size"], "zero_point": True}), files)
    return Gptq(fields.like({**given, "checkpoint_format": _GPTQ[packing]}), files)
