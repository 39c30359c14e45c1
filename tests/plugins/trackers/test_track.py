"""`posttrain track` in an environment with real trackers: what they have is read back by their own libraries.

The environment is .venv-track (`make test-track`), or the one whose Python $POSTTRAIN_TRACK_PYTHON names.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.pipeline.track.push import FIRST
from tests.pipeline.report import workspace
from tests.plugins.trackers.read_back import Points
from tests.workspace import ROOT, environment

PYTHON = os.environ.get("POSTTRAIN_TRACK_PYTHON", str(ROOT / ".venv-track/bin/python"))
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
PROJECT = "tracked"
pytestmark = pytest.mark.skipif(not Path(PYTHON).is_file(), reason="the trackers are not there: make test-track")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished workspace that was moved here, of which trackers know nothing yet; their Python has no DVC."""
    made = workspace.make(tmp_path / PROJECT)
    (made / ".dvc").mkdir()
    (made / ".dvc/config.local").write_text("[core]\n    site_cache_dir = /elsewhere/.dvc/tmp/site\n")
    return made


def variables() -> dict[str, str]:
    known = {
        name: value for name, value in environment().items() if not name.startswith(("MLFLOW", "WANDB", "TRACKIO"))
    }
    return known | {"PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}


def started(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    command = [PYTHON, "-P", "-m", "posttrain", "track", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=variables() | more, stdout=pipe, stderr=pipe, text=True)


def track(folder: Path, *words: str, **more: str) -> str:
    out, err = (process := started(folder, *words, **more)).communicate(timeout=240)
    assert process.returncode == 0, f"{out}\n{err}"
    return out


def read_back(folder: Path, tracker: str, **more: str) -> Points:
    command = [PYTHON, "-P", "-m", "tests.plugins.trackers.read_back", tracker, ".track", PROJECT]
    done = subprocess.run(command, cwd=folder, env=variables() | more, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Points = json.loads(done.stdout.splitlines()[-1])
    return found


def written(file: Path) -> dict[str, list[list[float]]]:
    """The points of a curve's file: metric -> [step, value], of finite cells."""
    names, *lines = [line.split(",") for line in file.read_text().splitlines()]
    rows = [{name: six(float(cell)) for name, cell in zip(names, line, strict=True) if cell} for line in lines]
    shown = [name for name in names if name != "step"]
    return {
        group_of(name): [[row["step"], row[name]] for row in rows if math.isfinite(row.get(name, math.nan))]
        for name in shown
    }


def group_of(name: str) -> str:
    """The name that a metric has at trackers."""
    group, rest = next(
        ((group, name.removeprefix(start)) for start, group in (("heldout_", "heldout"), ("reward_", "rewards"))
         if name.startswith(start)), ("curves" if name in FIRST else "details", name),
    )  # fmt: skip
    return f"{group}/{rest}"


def curves(found: dict[str, list[tuple[int, float]]]) -> dict[str, list[list[float]]]:
    """What a tracker has of a curve, as exactly as the file: six digits, which a float32 of TensorBoard keeps."""
    points = {name: values for name, values in found.items() if not name.startswith(("results/", "text/"))}
    return {name: [[step, six(value)] for step, value in values] for name, values in points.items()}


def six(value: float) -> float:
    """The number with as many digits as a stage writes."""
    return float(f"{value:.6g}")


def rewrite(file: Path, change: Callable[[list[str]], list[str]]) -> list[str]:
    lines = file.read_text().splitlines()
    file.write_text("".join(f"{line}\n" for line in change(lines)))
    return lines


@pytest.mark.slow
def test_every_tracker_has_the_points_of_the_file_and_pushing_again_adds_none(folder: Path) -> None:
    workspace.watch(folder)  # columns with a few cells alone, and a last row of another kind
    file = folder / "plots/online/grpo.csv"
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace(",0.1,", ",nan,", 1)
    rewrite(
        file,
        lambda _: [f"{line},{number / 7:.6g}" if number else f"{line},sevenths" for number, line in enumerate(lines)],
    )
    expected = written(file)
    assert len(expected["curves/loss"]) == 59 and len(expected["heldout/true"]) == 3
    first = {}
    for time_pushed in range(2):
        said = track(folder, "--to", ",".join(TRACKERS), "online/grpo", "dpo")
        assert said.count("online/grpo: 61 steps") == said.count("preference/dpo: 20 steps") == len(TRACKERS)
        for tracker in TRACKERS:
            found = read_back(folder, tracker)
            assert sorted(label.partition("-")[0] for label in found) == ["online/grpo", "preference/dpo"], tracker
            label = next(label for label in found if label.startswith("online/grpo-"))
            assert curves(found[label]) == expected, tracker
            assert tracker == "wandb" or six(found[label]["results/two_step/prompts/score"][-1][1]) == 0.9, tracker
            assert {"text/completions/two_step/prompts", "text/lineage"} <= set(found[label]), (
                tracker,
                sorted(found[label]),
            )
            if not time_pushed:
                first[tracker] = {label: curves(points) for label, points in found.items()}
            assert {label: curves(points) for label, points in found.items()} == first[tracker], tracker
    assert "online/grpo: 61 steps, 0 of them new for mlflow" in said


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_a_run_that_grows_is_followed_though_its_tracker_is_killed_and_its_file_is_written_anew(
    folder: Path, tracker: str
) -> None:
    file = folder / "plots/online/grpo.csv"
    lines = rewrite(file, lambda lines: lines[:11])
    with training(folder):
        first = started(folder, "--to", tracker, "--follow", "--every", "0.1", "online/grpo")
        wait_for(lambda: steps(folder, tracker) == 10, first)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        with file.open("a") as growing:
            growing.write("".join(f"{line}\n" for line in lines[11:20]) + lines[20][:4])  # and a line in the making
        second = started(folder, "--to", tracker, "--follow", "--every", "0.1", "online/grpo")
        wait_for(lambda: steps(folder, tracker) == 19, second)
        rewrite(file, lambda _: lines[:6])  # killed, and resumed from a checkpoint: the same rows come again
        time.sleep(0.5)
        rewrite(file, lambda _: [f"{lines[0]},new", *(f"{line}," for line in lines[1:30]), f"{lines[30]},7"])
        wait_for(lambda: steps(folder, tracker) == 30, second)
    out, err = second.communicate(timeout=60)  # it ends when no process trains the run any more
    assert second.returncode == 0, f"{out}\n{err}"
    (found,) = read_back(folder, tracker).values()
    assert curves(found) == written(file)
    assert found["results/two_step/prompts/score"]


@pytest.mark.slow
def test_other_settings_or_another_first_step_make_another_run(folder: Path) -> None:
    labels = []
    for change in ("", "beta: 0.02|beta: 0.5", "step"):
        old, _, new = change.partition("|")
        if new:
            params = folder / "params.yaml"
            params.write_text(params.read_text().replace(old, new))
        elif change:
            rewrite(
                folder / "plots/online/grpo.csv", lambda lines: [lines[0], lines[1].replace("0.1", "0.2"), *lines[2:]]
            )
        track(folder, "--to", "tensorboard", "grpo")
        labels.append(set(read_back(folder, "tensorboard")))
    assert [len(found) for found in labels] == [1, 2, 3] and labels[0] < labels[1] < labels[2]


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_stops_no_other_tracker(folder: Path) -> None:
    more = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    process = started(folder, "--to", "mlflow,tensorboard", "grpo", **more)
    _, err = process.communicate(timeout=120)
    assert (
        process.returncode == 1 and "mlflow: " in err and "Training is not affected" in err and "Traceback" not in err
    )
    (found,) = read_back(folder, "tensorboard").values()
    assert curves(found) == written(folder / "plots/online/grpo.csv")


@pytest.mark.slow
def test_a_server_of_mlflow_has_the_same_points(folder: Path, tmp_path: Path) -> None:
    port = 20_000 + os.getpid() % 20_000
    words = ["server", "--backend-store-uri", f"sqlite:///{tmp_path}/served.db", "--workers", "1", "--port", str(port)]
    words += ["--artifacts-destination", str(tmp_path / "artifacts"), "--host", "127.0.0.1"]
    command = [PYTHON, "-m", "mlflow", *words]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=variables(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        more = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
        wait_for(lambda: answers(more["MLFLOW_TRACKING_URI"]), server, most=90)
        for _ in range(2):
            track(folder, "--to", "mlflow", "grpo", **more)
            (found,) = read_back(folder, "mlflow", **more).values()
            assert (
                curves(found) == written(folder / "plots/online/grpo.csv")
                and "text/completions/two_step/prompts" in found
            )
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_no_secret_is_written(folder: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    track(folder, "--to", ",".join(TRACKERS), "grpo", WANDB_API_KEY=secret, HF_TOKEN=secret)
    files = [file for file in (folder / ".track").rglob("*") if file.is_file()]
    assert files and not [file for file in files if secret.encode() in file.read_bytes()]


def answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def steps(folder: Path, tracker: str) -> int:
    try:
        return max((len(points.get("curves/loss", ())) for points in read_back(folder, tracker).values()), default=0)
    except AssertionError:  # nothing is there yet
        return 0


def wait_for(come: Callable[[], bool], process: subprocess.Popen[str], most: float = 60) -> None:
    until = time.monotonic() + most
    while not come():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.2)


class training:  # noqa: N801  read as words
    """A process that holds the lock of a run, as one that trains it does."""

    CODE = (
        "import sys; from posttrain.pipeline.workspace import lock_stage as lock; "
        "lock('online@grpo'); print(flush=True); sys.stdin.read()"
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        command, pipe = [sys.executable, "-c", self.CODE], subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=self.folder, env=variables(), stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "\n"

    def __exit__(self, *_: object) -> None:
        self.process.communicate("")
