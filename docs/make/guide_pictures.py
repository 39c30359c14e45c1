"""The pictures of the guides, in docs/pictures/: `python -m docs.make.guide_pictures` draws them in about five minutes.

It trains a healthy and a sick run in a workspace of its own (`--workspace DIR` keeps it), runs them as a Prefect flow,
and takes pictures with a browser (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from docs.make.picture import LEFT_OUT, WIDTH, write_bytes
from posttrain.files import write_text
from posttrain.pipeline.lineage.stage_graph import StageGraph
from posttrain.pipeline.params.yaml_files import read_yaml
from tests.pipeline.report.browser import Page, program, started
from tests.workspace import ROOT, environment, git, make_workspace

FOLDER: Final = Path("docs/pictures")
SHARED: Final[dict[str, Any]] = {
    "algorithm": "grpo",
    "start": "sft/main",
    "data": "two_step/prompts",
    "corpus": "none",
    "rollout": {"rounds": 30, "prompts": 8, "group_size": 8, "minibatches": 2},
    "watch": {"every": 6, "prompts": 100, "reward": {"correct": 1.0}},
}
RUNS: Final[dict[str, dict[str, Any]]] = {
    "healthy": {
        "reward_model": "none",
        "reward": {"correct": 1.0},
        "kl": {"type": "loss", "beta": 0.02},
        "optimizer": {"lr": 4e-4, "schedule": "linear"},
    },
    "sick": {
        "reward_model": "reward/main",
        "reward": {"model": 1.0},
        "kl": "none",
        "optimizer": {"lr": 1e-3, "schedule": "constant"},
    },
}
TITLES: Final = {
    "healthy": "healthy: both rise together",
    "sick": "sick: the policy exploits its reward",
}
LINES: Final = {"reward": ("reward in training", "#c2570c"), "heldout_true": ("correct, held out", "#0b6bb5")}
ARROWS: Final = {
    3: "1 score of each setting, with its 95 % interval",
    4: "2 difference to the reference on the same prompts",
    5: "3 verdict, corrected for several tests",
    9: "4 where the gain comes from",
}
"""Column of the results table -> the text of its arrow."""
SHORT: Final = {
    "data": [],
    "base": ["data"],
    "sft": ["base"],
    "data_samples": ["sft"],
    "reward": ["data_samples"],
    "preference": ["data_samples"],
    "online": ["reward"],
    "evaluate": ["base", "sft", "preference", "online"],
    "report": ["evaluate"],
}
"""Stage -> its inputs."""
_MODELS: Final = ["sft", "preference", "online", "distill", "offline", "external"]
WHOLE: Final = {
    **dict.fromkeys(("data_tasks", "data_files", "data_hub"), ()),
    "data_filters": ["data_tasks", "data_files", "data_hub"],
    "base_scratch": ["data_filters"],
    **dict.fromkeys(("base_folders", "base_hub"), ()),
    "sft": ["base_scratch", "base_folders", "base_hub"],
    **{name: ["sft"] for name in ("data_samples", "external", "data_commands")},
    "reward": ["data_samples"],
    "preference": ["data_samples"],
    "online": ["reward"],
    "distill": ["sft"],
    "external_rollouts": ["sft"],
    "offline": ["online", "distill", "external_rollouts"],
    "regrade": ["online"],
    "completions": _MODELS,
    "lm_eval": _MODELS,
    "evaluate": ["completions"],
    "evaluate_ratings": ["evaluate"],
    "report": ["evaluate", "lm_eval", "regrade", "evaluate_ratings"],
}
POINT: Final = """(() => {
  document.querySelectorAll('LEFT_OUT, #completions').forEach((one) => one.remove());
  const main = document.querySelector('main'), table = document.querySelector('#results table');
  const head = table.querySelectorAll('thead th'), svg = 'http://www.w3.org/2000/svg';
  const box = table.getBoundingClientRect(), bottom = box.bottom + scrollY;
  const draw = document.createElementNS(svg, 'svg');
  Object.assign(draw.style, { position: 'absolute', left: 0, top: 0, width: '100%', height: `${bottom + 190}px` });
  draw.style.pointerEvents = 'none';
  const add = (name, set, text) => {
    const one = document.createElementNS(svg, name);
    for (const key in set) one.setAttribute(key, set[key]);
    if (text) Object.assign(one.style, { fill: '#c2570c', font: '16px sans-serif' });
    if (text) one.textContent = text;
    draw.append(one);
  };
  Object.entries(ARROWS).reverse().forEach(([column, text], index) => {
    const cell = head[column - 1].getBoundingClientRect(), x = cell.left + cell.width / 2;
    const y = bottom + 40 + 34 * index;
    add('path', { d: `M${x} ${y} V${bottom + 8}`, stroke: '#c2570c', 'stroke-width': 2.5 });
    add('path', { d: `M${x - 6} ${bottom + 16} L${x} ${bottom + 4} L${x + 6} ${bottom + 16} z`, fill: '#c2570c' });
    add('text', { x: x + 10, y }, text);
  });
  document.body.append(draw);
  main.style.paddingBottom = '190px';
  return bottom + 165;
})()"""


def main(arguments: list[str]) -> int:
    """Draw every picture, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m docs.make.guide_pictures", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--workspace", type=Path, help="where the runs are; made if it does not exist")
    options = parser.parse_args(arguments)
    if program() is None:
        parser.error("it needs a browser, e.g. chromium")
    with tempfile.TemporaryDirectory() as scratch:
        workspace = options.workspace or Path(scratch) / "workspace"
        if not workspace.exists():
            train(workspace)
        for name in options.names or PICTURES:
            PICTURES[name](workspace, FOLDER / name)
            print(f"drew {FOLDER / name}")
    return 0


def train(workspace: Path) -> None:
    """Run the smoke recipe with a healthy and a sick run as a Prefect flow."""
    make_workspace(workspace, ROOT / "recipes/smoke.yaml")
    settings = read_yaml(workspace / "params.yaml")
    settings["online"]["runs"] |= {name: {**SHARED, **run} for name, run in RUNS.items()}
    (workspace / "params.yaml").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    git(workspace, "commit", "--quiet", "--all", "--message", "A healthy and a sick run")
    subprocess.run([sys.executable, "-m", "flows.pipeline"], cwd=workspace, env=environment(), check=True)


def results(workspace: Path, file: Path) -> None:
    """The table of results with four arrows."""
    del workspace
    script = POINT.replace("LEFT_OUT", LEFT_OUT).replace("ARROWS", json.dumps(ARROWS))
    with tempfile.TemporaryDirectory() as folder, started(Path(folder) / "profile") as port, Page(port) as shown:
        shown.open(Path("report/report.html"), width=WIDTH, height=900)
        write_bytes(file, picture(shown, WIDTH, shown.run(script)))


def curves(workspace: Path, file: Path) -> None:
    """A healthy and a sick run: the reward in training, and correct answers to held-out prompts."""
    panels = [_panel(workspace, run, 20 + 400 * index) for index, run in enumerate(RUNS)]
    begin = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 810 270" font-family="sans-serif" font-size="13">'
    write_text(file, "\n".join([begin, '<rect width="810" height="270" fill="#fff"/>', *panels, "</svg>"]) + "\n")


def _panel(workspace: Path, run: str, left: int) -> str:
    rows = list(csv.DictReader((workspace / f"plots/online/{run}.csv").open(encoding="utf-8")))
    parts = [f'<text x="{left + 30}" y="20" font-weight="bold" fill="#111">{TITLES[run]}</text>']
    parts += [
        f'<path d="M{left + 30} {_y(level)} H{left + 370}" stroke="#ddd"/>'
        f'<text x="{left + 24}" y="{_y(level) + 4}" text-anchor="end" fill="#555">{level:g}</text>'
        for level in (0, 0.5, 1)
    ]
    for index, (name, (label, colour)) in enumerate(LINES.items()):
        points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
        line = " ".join(f"{left + 30 + 5.6 * step:.1f},{_y(value):.1f}" for step, value in _smooth(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{left + 30 + 170 * index}" y="262" fill="{colour}">{label}</text>')
    return "\n".join([*parts, f'<text x="{left + 370}" y="244" text-anchor="end" fill="#555">optimizer steps</text>'])


def _smooth(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Average five steps of a curve that has a value at every step."""
    if len(points) < 20:
        return points
    windows = [points[max(0, place - 4) : place + 1] for place in range(len(points))]
    return [(window[-1][0], sum(value for _, value in window) / len(window)) for window in windows]


def _y(value: float) -> float:
    return 220 - 180 * value


def graph(workspace: Path, file: Path) -> None:
    """The stages of the workspace's params.yaml, as `posttrain graph --svg` draws them."""
    words = [sys.executable, "-m", "posttrain", "graph", "--svg", str(file.resolve())]
    subprocess.run(words, cwd=workspace, env=environment(), check=True)


def flow(workspace: Path, file: Path) -> None:
    """Prefect's page of the flow run."""
    address = "http://127.0.0.1:4317"
    known = {
        **environment(),
        "PREFECT_HOME": str(workspace.resolve() / ".prefect"),
        "PREFECT_API_URL": f"{address}/api",
    }
    known |= {"PREFECT_UI_API_URL": f"{address}/api", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    words = [sys.executable, "-m", "prefect", "server", "start", "--port", "4317", "--no-services"]
    with subprocess.Popen(words, env=known, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            run = _last_run(f"{address}/api")
            _screenshot(f"{address}/runs/flow-run/{run}", file)
        finally:
            server.terminate()


def _last_run(api: str) -> str:
    """Return the id of the flow run that ended last, as soon as the server answers."""
    query = json.dumps({"sort": "END_TIME_DESC", "limit": 1}).encode()
    request = urllib.request.Request(f"{api}/flow_runs/filter", query, {"Content-Type": "application/json"})
    for _ in range(120):
        try:
            with urllib.request.urlopen(request) as answer:
                return str(json.load(answer)[0]["id"])
        except OSError:
            time.sleep(1)
    raise RuntimeError("Prefect's server did not start")


def _screenshot(address: str, file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, started(Path(folder) / "profile") as port, Page(port) as shown:
        size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        shown.call("Emulation.setDeviceMetricsOverride", **size)
        shown.call("Page.navigate", url=address)
        shown.wait("document.body && document.body.innerText.includes('online@healthy')")
        time.sleep(5)  # the graph of tasks is drawn after the text
        write_bytes(file, picture(shown, WIDTH, 900))


def picture(shown: Page, width: float, height: float) -> bytes:
    """Return the upper part of an open page as PNG."""
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = shown.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(taken["data"])


def stages(workspace: Path, file: Path) -> None:
    """The stages that a first project uses."""
    del workspace
    write_text(file, StageGraph(SHORT, {}).svg())


def all_stages(workspace: Path, file: Path) -> None:
    """All kinds of stages, without edges that would make a circle, such as any model as the start of any run."""
    del workspace
    write_text(file, StageGraph(WHOLE, {}).svg())


PICTURES: Final = {
    "results.png": results,
    "curves.svg": curves,
    "graph.svg": graph,
    "flow.png": flow,
    "stages.svg": stages,
    "all-stages.svg": all_stages,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
