"""The first layer's initial attention, in which masks attend to the root of their block.

All masks have the same embedding; attention alone shows them which token they follow. With copied weights that token is
one of hundreds of keys, and gets a small share of a row's attention. So half of the first layer's key heads begin with
a direction that separates roots from masks and features, fitted by least squares to some texts. The keys of roots have
it, and the queries of masks ask for it.
"""

from __future__ import annotations

from typing import Any

import torch

_RIDGE = 1e-3


def look_at_roots(layer: Any, features: torch.Tensor, roots: torch.Tensor, mask: torch.Tensor) -> None:
    """Sets queries and keys of half of the layer's key heads, at least one; to be called without gradients.

    layer: of Qwen3. features: [n, hidden], those of some texts. roots: [m, hidden], embeddings of some tokens. mask:
    [hidden], the mask's embedding.
    """
    attention = layer.self_attn
    seen, asking = layer.input_layernorm(roots), layer.input_layernorm(mask)
    inputs = torch.cat([seen, features, asking.expand(len(seen), -1)])
    wanted = torch.cat([torch.ones(len(seen)), -torch.ones(len(features) + len(seen))]).to(inputs)
    normal = inputs.T @ inputs
    ridge = _RIDGE * normal.diagonal().mean() * torch.eye(len(normal), device=inputs.device)
    apart = torch.linalg.solve(normal + ridge, inputs.T @ wanted)
    dim, groups = attention.head_dim, attention.num_key_value_groups
    # Only pairs that turn slowly, so that the distance does not matter.
    direction = torch.zeros(2, dim // 2, device=inputs.device)
    direction[:, dim // 4 :] = 1
    direction = direction.flatten()
    heads = max(1, attention.k_proj.out_features // dim // 2)
    for linear, count, read in (
        (attention.k_proj, heads, apart),
        (attention.q_proj, heads * groups, asking),
    ):
        linear.weight[: count * dim] = torch.outer(direction.repeat(count), read)
