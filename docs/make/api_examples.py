"""Examples of docs/reference/api.md, for the names whose docstring has none; a test runs them in this order.

Names that they do not define come from `tests/library/api/test_api_examples.py`: a model of two layers with its
tokenizer, its folder models/sft/main, rows, pairs, prompts and a reward.
"""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, str]] = {
    "posttrain.Evaluation": """
found = posttrain.evaluate_model(model, tokenizer, prompts, reward, samples=2)
low, high = found.metrics["score_low"], found.metrics["score_high"]
""",
    "posttrain.LoggedRollouts": """
import polars as pl

table = pl.concat(pl.read_parquet(file) for file in Path("out/rollouts").glob("*.parquet"))
logged = posttrain.LoggedRollouts(table, [(0, 4), (4, 4)], temperature=1.0, max_tokens=8)
""",
    "posttrain.ParamsError": """
try:
    posttrain.OnlineConfig.preset("grpo", rollouts={"rounds": 20})
except posttrain.ParamsError as error:
    print(error.what, error.where, error.fix)
""",
    "posttrain.PosttrainError": """
try:
    posttrain.load_model("models/nope")
except posttrain.PosttrainError as error:
    print(error.code, error)
""",
    "posttrain.Regraded": """
rollouts = posttrain.evaluate_model(model, tokenizer, prompts, reward, samples=2).rollouts
for one in next(posttrain.regrade([rollouts], {"correct": 1.0})):
    print(one.reward, one.status)
""",
    "posttrain.RewardTraining": """
config = posttrain.RewardTraining(epochs=2, batch=4)
scorers = posttrain.load_models("models/sft/main", config)
posttrain.train_model(scorers, None, pairs, config=config)
""",
    "posttrain.SampledCompletions": """
found = posttrain.sample_completions(model, tokenizer, prompts, posttrain.CompletionsConfig(samples=2))
strict, loose = (posttrain.score_completions(found, {"correct": {"answer": kind}}) for kind in ("exact", "numeric"))
""",
    "posttrain.Samples": """
drawn = posttrain.sample(model, tokenizer, "What is 2 + 3?", n=4)
longest = drawn.mask.sum(1).max()
""",
    "posttrain.ScoredSamples": """
found = posttrain.sample_and_score(model, tokenizer, prompts, posttrain.SampleConfig(reward=reward, samples=2))
best = max(range(len(found.rewards)), key=lambda place: found.rewards[place])
print(found.rollouts[best].text)
""",
    "posttrain.SftConfig": """
config = posttrain.SftConfig(epochs=2, batch=4, adapter={"type": "lora", "rank": 4})
models = posttrain.load_models("models/sft/main", config)
posttrain.train_model(models, None, rows, config=config).save("models/sft/lora")
""",
    "posttrain.load_model": """
model, tokenizer = posttrain.load_model("models/sft/main")
""",
    "posttrain.load_reward_model": """
scorer, tokenizer = posttrain.load_reward_model("models/reward/main")
""",
    "posttrain.sample": """
texts = posttrain.sample(model, tokenizer, ["What is 2 + 3?"], n=4, max_tokens=16).texts
""",
    "posttrain.train_model": """
posttrain.train_model(model, tokenizer, pairs, "dpo", settings={"loss": {"type": "dpo", "beta": 0.3}})
""",
    "posttrain.train_online": """
trained = posttrain.train_online(
    model, tokenizer, prompts, {"correct": 1.0, "brief": (reward, 0.2)}, "grpo", settings={"rollout": {"rounds": 2}}
)
print(trained.tail("reward", steps := 2))
""",
    "posttrain.losses.GroupPreferences": """
module = posttrain.losses.GroupPreferences(width=8)
scores = module(torch.randn(1, 3, 2, 8), torch.full((1, 3, 2), 0.5), torch.tensor([[True, True, False]]))
""",
    "posttrain.losses.Options": """
class Power(posttrain.losses.Options):
    exponent: float = 2.0
""",
    "posttrain.losses.PaddedBatch": """
def mine(batch: posttrain.losses.PaddedBatch) -> torch.Tensor:
    return -(batch.logp * batch.advantage * batch.mask).sum() / batch.step_tokens * batch.ranks
""",
    "posttrain.losses.Tokens": """
def term(tokens: posttrain.losses.Tokens, options: posttrain.losses.Options) -> torch.Tensor:
    return tokens.ratio.clamp(max=2.0) * tokens.advantage
""",
    "posttrain.losses.diffusion_dpo_loss": """
noise = torch.randn(4, 3, 8, 8)
prediction = (noise + 0.1).requires_grad_()
loss, metrics = posttrain.losses.diffusion_dpo_loss(prediction, noise + 0.2, noise, beta=0.5)
""",
    "posttrain.losses.gae": """
mask = torch.ones(2, 5, dtype=torch.bool)
advantages, returns = posttrain.losses.gae(torch.tensor([1.0, 0.0]), torch.zeros(2, 5), mask)
""",
    "posttrain.losses.group_advantages": """
advantages = posttrain.losses.group_advantages("grpo", torch.tensor([1.0, 0.0, 0.0, 1.0]), groups=4)
""",
    "posttrain.losses.group_preference_loss": """
shares, known = torch.full((1, 3, 2), 0.5), torch.tensor([[True, True, False]])
loss, metrics = posttrain.losses.group_preference_loss(torch.zeros(1, 3, 2, requires_grad=True), shares, known)
""",
    "posttrain.losses.kl_estimate": """
kl = posttrain.losses.kl_estimate(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]), "k3")
""",
    "posttrain.losses.mdpo_loss": """
logp = torch.full((3, 4), -1.0, requires_grad=True)  # chosen, rejected, chosen with another image
loss, metrics = posttrain.losses.mdpo_loss(logp, torch.ones(3, 4, dtype=torch.bool), torch.full((3, 4), -1.1))
""",
    "posttrain.losses.policy_loss": """
logp, mask = torch.full((4, 5), -1.0, requires_grad=True), torch.ones(4, 5, dtype=torch.bool)
loss, metrics = posttrain.losses.policy_loss("grpo", logp, logp.detach(), advantages, mask, ref_logp=logp.detach())
loss.backward()
""",
    "posttrain.losses.preference_loss": """
logp, mask = torch.full((4, 5), -1.0, requires_grad=True), torch.ones(4, 5, dtype=torch.bool)
loss, metrics = posttrain.losses.preference_loss("dpo", logp, mask, ref_logp=logp.detach() - 0.1)
""",
    "posttrain.losses.reward_loss": """
chosen, rejected = torch.tensor([1.0, 0.5], requires_grad=True), torch.tensor([0.0, 0.7])
loss, metrics = posttrain.losses.reward_loss(chosen, rejected, centring_weight=0.01)
""",
    "posttrain.losses.token_logprobs": """
ids = tokenizer("2 + 3 = 5", return_tensors="pt").input_ids
logp, entropy = posttrain.losses.token_logprobs(model(ids).logits[:, :-1], ids[:, 1:])
""",
    "posttrain.losses.token_logprobs_from_hidden": """
hidden = model(ids, output_hidden_states=True).hidden_states[-1]
weight = model.get_output_embeddings().weight
logp, entropy = posttrain.losses.token_logprobs_from_hidden(hidden[:, :-1], ids[:, 1:], weight)
""",
    "posttrain.losses.value_loss": """
mask = torch.ones(2, 5, dtype=torch.bool)
values = torch.zeros(2, 5, requires_grad=True)
loss = posttrain.losses.value_loss(values, values.detach(), returns, mask)
""",
    "posttrain.losses.whiten": """
whitened = posttrain.losses.whiten(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True]]))  # -1, 1
""",
    "posttrain.rewards.Context": """
def score_fn(options: NoOptions, context: Context) -> ScoreFn:
    limit = context.max_tokens or 0
    return lambda rollouts: [float(len(rollout.logps) < limit) for rollout in rollouts]
""",
    "posttrain.rewards.Examples": """
from posttrain.rewards import Examples, Prompt


def examples(prompt: Prompt, options: NoOptions) -> Examples:
    return Examples(right=[prompt.answer], wrong=[f"{prompt.answer}0"])
""",
    "posttrain.rewards.NoOptions": """
from posttrain.rewards import NoOptions, rule


@rule(NoOptions)
def polite(rollout: Rollout, options: NoOptions) -> float:
    return float("please" in rollout.text)
""",
    "posttrain.rewards.Params": """
class Limit(posttrain.rewards.Params):
    words: int = 50
""",
    "posttrain.rewards.Prompt": """
prompt = posttrain.rewards.Prompt("p1", [{"role": "user", "content": "2 + 3?"}], (), answer="5")
""",
    "posttrain.rewards.Rollout": """
def brief(rollouts: Sequence[posttrain.rewards.Rollout]) -> list[float]:
    return [1.0 / (1 + len(rollout.text)) for rollout in rollouts]
""",
    "posttrain.rewards.Score": """
unread = posttrain.rewards.Score(0.0, "unparseable", "there is no number")
""",
    "posttrain.rewards.rule": """
class Limit(posttrain.rewards.Params):
    words: int = 50


@posttrain.rewards.rule(Limit)
def short(rollout: Rollout, options: Limit) -> float:
    return float(len(rollout.text.split()) <= options.words)
""",
    "posttrain.tasks.Generator": """
class Size(posttrain.tasks.Params):
    rows: int = 4


def prompts_of(params: Size) -> dict[str, pl.DataFrame]:
    made = [{"problem": str(n), "prompt": f"{n}+1", "answer": str(n + 1), "split": "train"} for n in range(params.rows)]
    return {"prompts": pl.DataFrame(made)}


generator = posttrain.tasks.Generator(Size, ("prompts",), prompts_of)
""",
    "posttrain.tasks.Params": """
class Sums(posttrain.tasks.Params):
    largest: int = 9
""",
}
