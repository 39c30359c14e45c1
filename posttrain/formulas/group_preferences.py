"""GPO's preference module: predict a group's answers from questions that it has answered (arXiv:2310.11523)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GroupPreferences(nn.Module):
    """A transformer that reads a group's known answers and scores the options of other questions (GPO).

    Its tokens are the options, with the share of the group that chose each if the question is `known`. They have no
    positions. All tokens attend to the known ones. Among the unknown ones, an option attends only to itself, so no
    prediction depends on which other questions are asked.

    width: the size of the options' features, e.g. a language model's mean hidden state over question and option.
    """

    def __init__(self, width: int, *, hidden: int = 64, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width + 2, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Linear(hidden, 1)

    def forward(self, options: Tensor, shares: Tensor, known: Tensor) -> Tensor:
        """Return a score for each option [B, Q, O]. The softmax over a question's options gives the predicted shares.

        options [B, Q, O, width]: B groups, Q questions, O options. shares [B, Q, O]: read if known [B, Q].
        """
        known_BN = known.bool()[..., None].expand(shares.shape).flatten(1)
        share_BN = torch.where(known_BN, shares.flatten(1), 0.0)
        tokens = torch.cat([options.flatten(1, 2), torch.stack([share_BN, known_BN.to(share_BN)], -1)], -1)
        itself = torch.eye(known_BN.shape[1], dtype=torch.bool, device=known_BN.device)
        hidden_BN = (~(known_BN[:, None, :] | itself)).repeat_interleave(self.heads, 0)
        score_BN: Tensor = self.score(self.layers(self.read(tokens), mask=hidden_BN))
        return score_BN.view(shares.shape)


def share_divergence(scores: Tensor, shares: Tensor) -> Tensor:
    """Return KL(shares || softmax(scores)) per question: the cross-entropy minus its lower bound."""
    logp = scores.log_softmax(-1)
    return (torch.xlogy(shares, shares) - shares * logp).sum(-1)
