"""The forward passes that training and decoding are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.attention import Attends, PackedAttention
from posttrain.models.head import AnyHead, head_of
from posttrain.models.logp import token_logp
from posttrain.text.layout import Layout


def backbone(model: Any) -> Any:
    """The model under its head."""
    return model.model if model.base_model is model else model.base_model


def hidden_states(
    model: Any, ids: Tensor, positions: Tensor, attention: Attends, embedded: Tensor | None = None
) -> Tensor:
    """The last hidden states [B, N, D] of ids [B, N], or of their embeddings where those are at hand [B, N, D]."""
    given = {"input_ids": ids} if embedded is None else {"inputs_embeds": embedded}
    output = backbone(model)(**given, position_ids=positions, layout=attention, use_cache=False)
    states: Tensor = output.last_hidden_state
    return states


def run_in_rows(model: Any) -> None:
    """From here on the model's own attention runs over padded rows: for families that cannot be run packed."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # what a model raises that has no such attention
        model.set_attn_implementation("eager")
    model.runs_in_rows = True


def runs_in_rows(model: Any) -> bool:
    """Whether the model cannot be run packed."""
    return getattr(model, "runs_in_rows", False)


def row_states(model: Any, ids_ST: Tensor) -> Tensor:
    """The last hidden states [S, T, D] of rows padded on the right, which a causal model does not see."""
    states: Tensor = backbone(model)(input_ids=ids_ST, use_cache=False).last_hidden_state
    return states


def packed_states(model: Any, layout: Layout, embedded_ND: Tensor | None = None) -> Tensor:
    """The last hidden states [N, D] of a packed layout."""
    if runs_in_rows(model):
        rows = [row_states(model, layout.ids_N[gather]).flatten(0, 1) for gather in layout.gathers]
        return torch.cat(rows).index_select(0, layout.take_N)
    embedded = None if embedded_ND is None else embedded_ND[None]
    return hidden_states(model, layout.ids_N[None], layout.positions_N[None], PackedAttention(layout), embedded)[0]


def embedded_leaf(model: Any, layout: Layout) -> Tensor | None:
    """The tokens' embeddings [N, D] as a leaf: their gradient then needs no second matrix of the vocabulary's size.

    None where the model's embedding is not trained or more than a table, and for a model that runs in rows.
    """
    table = model.get_input_embeddings()
    if runs_in_rows(model) or type(table) is not nn.Embedding or not table.weight.requires_grad:
        return None
    return table.weight.detach().index_select(0, layout.ids_N).requires_grad_()


@torch.no_grad()
def add_embedding_gradient(model: Any, layout: Layout, embedded_ND: Tensor) -> None:
    """Add the gradient that has reached `embedded_leaf` to the embedding's own, as its backward would."""
    table = model.get_input_embeddings()
    grad_ND = embedded_ND.grad
    if grad_ND is None:
        return
    if table.padding_idx is not None:
        grad_ND = grad_ND.masked_fill((layout.ids_N == table.padding_idx)[:, None], 0)
    if table.weight.grad is None:
        table.weight.grad = torch.zeros_like(table.weight)
    table.weight.grad.index_add_(0, layout.ids_N, grad_ND.to(table.weight.dtype))


def score_tokens(
    model: Any, layout: Layout, temperature: float = 1.0, head: AnyHead | None = None
) -> tuple[Tensor, Tensor]:
    """(log-prob [M], entropy [M]) of the layout's trained tokens; `head` is the model's own unless given."""
    states_ND = packed_states(model, layout)
    hidden_MD = states_ND.index_select(0, layout.source_M)
    return token_logp(hidden_MD, head or head_of(model), layout.target_M, temperature)


def score_rows(model: Any, layout: Layout) -> Tensor:
    """The scalar head's score [B] of each row, at its last token."""
    states_ND = packed_states(model, layout)
    scores: Tensor = model.score(states_ND.index_select(0, layout.last_B)).squeeze(-1).float()
    return scores


def value_tokens(model: Any, layout: Layout) -> Tensor:
    """The scalar head's value [M] of the state before each completion token."""
    states_ND = packed_states(model, layout)
    values: Tensor = model.score(states_ND.index_select(0, layout.source_M)).squeeze(-1).float()
    return values
