"""Data sets of the Hub as parts: at their commit, only as much of them as is read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from posttrain.errors import DataError
from posttrain.hub_errors import hub_error, unreachable
from posttrain.progress import Progress
from posttrain.tables.failures import printable
from posttrain.tables.find_files import Parts
from posttrain.tables.options import HubTable
from posttrain.tables.readers import Columns, Numbered, Part, arrow_rows
from posttrain.tables.user_splits import Say

_BATCH: Final = 1000
_LISTED: Final = 500
"""Files that one request asks the sizes of."""


def hub_parts(source: HubTable, where: str, say: Say) -> Parts:
    """The splits of a data set: all of it in the Hub's cache, or with `limit` read from the Hub as far as needed."""
    if Path(source.name).exists():
        fix = "Name local data under data.files"
        raise DataError(
            what=f"'{source.name}' is a local file or folder, not a data set of the Hub", where=where, fix=fix
        )
    try:
        builder = _builder(source)
        if not Path(builder.cache_dir).exists():
            say(_plan(builder, source))
        if source.limit and not Path(builder.cache_dir).exists():
            loaded = builder.as_streaming_dataset()
        else:
            builder.download_and_prepare()
            loaded = builder.as_dataset()
    except Exception as error:  # the libraries of the Hub raise nearly everything
        raise hub_error(error, "dataset", source.name, source.revision, where) from error
    return dataset_parts(loaded, source, where)


def dataset_parts(loaded: Any, source: HubTable, where: str) -> Parts:
    """The splits of a `DatasetDict`, or of one that is read from the Hub row by row."""
    return {
        str(split): [Part(printable(f"{source.place} {split}"), partial(_rows, rows, source, where))]
        for split, rows in loaded.items()
    }


def _rows(rows: Any, source: HubTable, where: str, columns: Columns) -> Iterator[Numbered]:
    size = min(_BATCH, source.limit + 1 if source.limit else _BATCH)  # the row after the last says that there are more
    progress = Progress(f"reading {source.place}", source.limit, "row") if source.limit else None

    def batches() -> Iterator[Any]:
        try:
            for table in rows.with_format("arrow").iter(size):
                yield from table.to_batches()
                if progress is not None:
                    progress.advance(table.num_rows)
        except Exception as error:  # what it raises depends on the kind of file
            raise hub_error(error, "dataset", source.name, source.revision, where) from error

    yield from arrow_rows(batches(), columns)


def _builder(source: HubTable) -> Any:
    """The data set's builder at its commit; without a network what the cache has of that commit."""
    # imported here because only data of the Hub needs them and they take most of a second
    import datasets
    from huggingface_hub import HfApi

    def load() -> Any:
        return datasets.load_dataset_builder(source.name, source.config, revision=source.revision)

    try:
        HfApi().auth_check(source.name, repo_type="dataset")
        HfApi().dataset_info(source.name, revision=source.revision)
    except Exception as error:
        if not unreachable(error):
            raise
        try:
            builder = load()
        except Exception as missing:
            raise error from missing
        if builder.hash != source.revision:  # without a network `datasets` takes the newest commit that it has
            raise
        return builder
    return load()


def _plan(builder: Any, source: HubTable) -> str:
    """How much is going to be read."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    prefix = f"hf://datasets/{source.name}@{source.revision}/"
    files = [str(file) for some in builder.config.data_files.values() for file in some]
    paths = [file.removeprefix(prefix) for file in files]
    size = 0
    for start in range(0, len(paths), _LISTED):
        some = paths[start : start + _LISTED]
        known = HfApi().get_paths_info(source.name, some, repo_type="dataset", revision=source.revision)
        size += sum(file.size for file in known if isinstance(file, RepoFile))
    total = f"{size / 1e6:,.1f} MB in {len(paths):,} file{'s' * (len(paths) != 1)}"
    if source.limit:
        return f"reading the first {source.limit:,} rows of each split from the Hub, of {total}"
    return f"downloading {total} to the Hub's cache"
