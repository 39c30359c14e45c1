"""The table of distillations: which divergence from a teacher, on whose answers, and what only the teacher sees."""

from __future__ import annotations

from pydantic import Field, model_validator

from posttrain.algorithms.row import Row, table
from posttrain.algorithms.supervised import DistillKnobs


class DistillRunKnobs(DistillKnobs):
    """A divergence and where the answers come from."""

    own: float = Field(1.0, ge=0, le=1, description="share of the steps on the student's own samples (GKD's lambda)")
    context: str | None = Field(
        None, min_length=1, description="a system turn that the teacher sees and the student does not"
    )

    @model_validator(mode="after")
    def _context_is_text(self) -> DistillRunKnobs:
        if self.context is not None and not self.context.strip():
            raise ValueError("context is blank. Give the system turn's text, or null")
        return self


DISTILL_ROWS: dict[str, Row] = table(
    DistillRunKnobs,
    (
        Row(
            "distill",
            "Hinton 2015, arXiv:1503.02531",
            "mean_tokens KL(teacher || student) on the given answers",
            {"divergence": "forward_kl", "own": 0.0},
        ),
        Row(
            "gkd",
            "Agarwal 2023, arXiv:2306.13649",
            "mean_tokens [beta KL(p || m) + (1 - beta) KL(q || m)], half of the steps on own samples",
            {"divergence": "jensen_shannon", "own": 0.5},
        ),
        Row(
            "reverse_kl",
            "Gu 2023 (MiniLLM), arXiv:2306.08543",
            "mean_tokens KL(student || teacher) on own samples",
            {"divergence": "reverse_kl", "own": 1.0},
        ),
        Row(
            "context_distill",
            "Askell 2021, arXiv:2112.00861",
            "mean_tokens KL(teacher given a context || student without it) on own samples",
            {"divergence": "forward_kl", "own": 1.0},
        ),
    ),
)
