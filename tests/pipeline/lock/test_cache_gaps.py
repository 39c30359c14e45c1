"""Objects that DVC's cache lacks are found, and copied from the workspace."""

from __future__ import annotations

from pathlib import Path

from posttrain.pipeline.lock.cache_gaps import fill, gap_words, gaps, restore
from posttrain.pipeline.lock.digests import Digests, read_lock
from posttrain.pipeline.lock.fsync import cache_folder
from posttrain.pipeline.lock.graph import Pipeline
from tests.pipeline.lock.project import cache, md5, put


def lacking(root: Path) -> dict[str, str]:
    return gap_words(root, Pipeline(root), read_lock(root))


def test_what_the_cache_lacks_is_named(made: Path) -> None:
    assert lacking(made) == {}
    for digest in (md5("raw"), md5("weights")):
        cache(made, digest).unlink()
    found = [(name, out["path"]) for name, out in gaps(made, Pipeline(made), read_lock(made))]
    assert found == [("raw", "data/raw.txt"), ("mine@main", "models/mine/main")]
    assert lacking(made) == {
        "raw": "DVC's cache lacks data/raw.txt: run `posttrain repair`",
        "mine@main": "DVC's cache lacks models/mine/main: run `posttrain repair`",
    }


def test_it_is_copied_from_intact_outputs(made: Path) -> None:
    assert fill(made) == []
    for digest in (md5("raw"), md5("weights")):
        cache(made, digest).unlink()
    assert fill(made) == ["DVC's cache lacked 2 objects of raw, mine@main: copied from the workspace"]
    assert cache(made, md5("weights")).read_text() == "weights" and lacking(made) == {}
    assert not cache(made, md5("raw")).stat().st_mode & 0o222
    cache(made, md5("raw")).unlink()
    put(made / "data/raw.txt", "edited")
    assert fill(made) == [] and "raw" in lacking(made)


def test_the_list_of_a_folder_is_made_again(made: Path) -> None:
    out = read_lock(made)["mine@main"]["outs"][0]
    content = cache(made, out["md5"]).read_bytes()
    cache(made, out["md5"]).unlink()
    assert list(restore(made, cache_folder(made), out, Digests(made))) == [cache(made, out["md5"])]
    assert cache(made, out["md5"]).read_bytes() == content
