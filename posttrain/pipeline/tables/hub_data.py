"""Data sets from the Hub at a fixed commit. With `limit`, only the needed rows are downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from posttrain.data.hub_errors import hub_error, unreachable
from posttrain.data.shown import printable
from posttrain.errors import DataError
from posttrain.measure.progress import Progress
from posttrain.measure.record import LICENCE, note
from posttrain.pipeline.tables.find_files import Parts
from posttrain.pipeline.tables.options import HubTable
from posttrain.pipeline.tables.readers import Columns, Numbered, Part, arrow_rows
from posttrain.pipeline.tables.user_splits import Log

_BATCH: Final = 1000
_FILES_PER_REQUEST: Final = 500


def hub_parts(source: HubTable, where: str, log: Log) -> Parts:
    """Return the splits of a data set: downloaded to the Hub's cache, or streamed with `limit`."""
    if Path(source.name).exists():
        what = f"'{source.name}' is a local file or folder, not a data set on the Hub"
        raise DataError(what=what, where=where, fix="Use data.files for local data")
    try:
        builder = _builder(source)
        if not Path(builder.cache_dir).exists():
            log(_download_size(builder, source))
        if source.limit and not Path(builder.cache_dir).exists():
            loaded = builder.as_streaming_dataset()
        else:
            builder.download_and_prepare()
            loaded = builder.as_dataset()
    except Exception as error:  # the Hub's libraries raise errors of many types
        raise hub_error(error, "dataset", source.name, source.revision, where) from error
    return dataset_parts(loaded, source, where)


def dataset_parts(loaded: Any, source: HubTable, where: str) -> Parts:
    """Return the splits of a `DatasetDict` or a streamed equivalent."""
    return {
        str(split): [Part(printable(f"{source.place} {split}"), partial(_rows, rows, source, where))]
        for split, rows in loaded.items()
    }


def _rows(rows: Any, source: HubTable, where: str, columns: Columns) -> Iterator[Numbered]:
    size = min(_BATCH, source.limit + 1 if source.limit else _BATCH)  # one more row, to know whether there are more
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
    """Return the data set's builder at its commit. Without a network, use the cache if it has that commit."""
    # imported here: they take most of a second, and only this stage needs them
    import datasets
    from huggingface_hub import HfApi

    def load() -> Any:
        return datasets.load_dataset_builder(source.name, source.config, revision=source.revision)

    try:
        HfApi().auth_check(source.name, repo_type="dataset")
        info = HfApi().dataset_info(source.name, revision=source.revision)
    except Exception as error:
        if not unreachable(error):
            raise
        try:
            builder = load()
        except Exception as missing:
            raise error from missing
        if builder.hash != source.revision:  # without a network `datasets` uses the newest commit in its cache
            raise
        return builder
    if info.card_data is not None and info.card_data.license:
        note(**{f"{LICENCE}{source.name}": ", ".join(_listed(info.card_data.license))})
    return load()


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _download_size(builder: Any, source: HubTable) -> str:
    """Return a line that says how much will be downloaded."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    prefix = f"hf://datasets/{source.name}@{source.revision}/"
    files = [str(file) for some in builder.config.data_files.values() for file in some]
    paths = [file.removeprefix(prefix) for file in files]
    size = 0
    for start in range(0, len(paths), _FILES_PER_REQUEST):
        some = paths[start : start + _FILES_PER_REQUEST]
        known = HfApi().get_paths_info(source.name, some, repo_type="dataset", revision=source.revision)
        size += sum(file.size for file in known if isinstance(file, RepoFile))
    total = f"{size / 1e6:,.1f} MB in {len(paths):,} file{'s' * (len(paths) != 1)}"
    if source.limit:
        return f"reading the first {source.limit:,} rows of each split from the Hub, of {total}"
    return f"downloading {total} to the Hub's cache"
