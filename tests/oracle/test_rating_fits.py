"""Our Bradley-Terry ratings against evalica and arena-rank, on the same matches.

`make oracle` installs these into .oracles only. Each gets the drawn match that posttrain adds to every pair.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from posttrain.evaluate.intervals import Floats
from posttrain.evaluate.pairwise import ratings, resampled, spread, tallies

evalica = pytest.importorskip("evalica", reason="evalica is not installed: see `make oracle`")
pandas = pytest.importorskip("pandas", reason="pandas is not installed: see `make oracle`")
bradley_terry = pytest.importorskip(
    "arena_rank.models.bradley_terry", reason="arena-rank is not installed: see `make oracle`"
)
data = pytest.importorskip("arena_rank.utils.data_utils")
pytestmark = pytest.mark.oracle

STRENGTHS = np.array([0.0, 0.4, 0.9, 1.5])
PAIRS = list(combinations(range(4), 2))
PROMPTS = 300
Match = tuple[str, str, float]


def wins(ties: float) -> Floats:
    """Matches of four policies on each prompt: wins by their strengths, and some ties."""
    rng = np.random.default_rng(5)
    shares = [1 / (1 + np.exp(STRENGTHS[second] - STRENGTHS[first])) for first, second in PAIRS]
    won = (rng.random((PROMPTS, len(PAIRS))) < shares).astype(float)
    return np.where(rng.random(won.shape) < ties, 0.5, won)


def matches(wins_PQ: Floats) -> list[Match]:
    """The matches one by one, with the drawn one for each pair."""
    played = [
        (str(one), str(other), float(win))
        for wins_P in wins_PQ
        for (one, other), win in zip(PAIRS, wins_P, strict=True)
    ]
    return [*played, *((str(one), str(other), 0.5) for one, other in PAIRS)]


def ours(wins_PQ: Floats) -> Floats:
    return ratings(*tallies(wins_PQ, resampled(len(wins_PQ), 1), 1), PAIRS)


@pytest.mark.parametrize("ties", [0.0, 0.3])
def test_ratings_are_those_of_evalica(ties: float) -> None:
    wins_PQ = wins(ties)
    first, second, win = zip(*matches(wins_PQ), strict=True)
    names = {1.0: evalica.Winner.X, 0.0: evalica.Winner.Y, 0.5: evalica.Winner.Draw}
    fit = evalica.bradley_terry(first, second, [names[one] for one in win], tolerance=1e-12, limit=100_000)
    theirs = 400 * np.log10(fit.scores.sort_index().to_numpy())
    assert ours(wins_PQ)[0] == pytest.approx(theirs - theirs.mean(), abs=0.01)


@pytest.mark.parametrize("ties", [0.0, 0.3])
def test_ratings_and_intervals_are_those_of_arena_rank(ties: float) -> None:
    """Its intervals are those of the sandwich estimator over matches, ours of prompts that are drawn again."""
    wins_PQ = wins(ties)
    names = {1.0: "model_a", 0.0: "model_b", 0.5: "tie"}
    table = pandas.DataFrame(
        [(one, other, names[win]) for one, other, win in matches(wins_PQ)], columns=["model_a", "model_b", "winner"]
    )
    model = bradley_terry.BradleyTerry(4, init_rating=0.0)
    found = model.compute_ratings_and_cis(data.PairDataset.from_pandas(table))
    theirs = np.array(found["ratings"])
    ratings_RK = ours(wins_PQ)
    assert ratings_RK[0] == pytest.approx(theirs - theirs.mean(), abs=0.5)
    widths = np.array(found["rating_upper"]) - np.array(found["rating_lower"])
    for nth in range(4):
        low, high = spread(ratings_RK[:, nth])
        assert high - low == pytest.approx(float(widths[nth]), rel=0.15)
