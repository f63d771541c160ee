"""The files behind a user's own rows: which they are, what is in them, and whether they have changed.

`corpus.path` is one file, .parquet or else JSONL; a folder that `save_to_disk` of the package datasets wrote; or a
folder of .jsonl and .parquet files.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_tokens.errors import CorpusError
from ddp_tokens.files import sha256, sha256_of_json

STATE, SPLITS_OF_DATASET = "state.json", "dataset_dict.json"
JSONL, PARQUET, ARROW = ".jsonl", ".parquet", ".arrow"
Record = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A file of rows. `split`: of all of them, where the folder says it."""

    file: Path
    split: str | None = None


def records(path: str, fields: Sequence[str]) -> Iterator[tuple[str, Record]]:
    """Where each row stands, and its fields. Lines and rows are counted from 1. `fields`: for the error's text.

    Raises CorpusError: nothing there, no text, broken JSON, a line that is no object, what `arrow_rows` refuses.
    """
    for part in _parts(Path(path)):
        for where, record in _records_of(part.file, fields):
            if part.split is not None and record.setdefault("split", part.split) != part.split:
                raise CorpusError(f"{where}: split {record['split']!r} in the folder of split '{part.split}'")
            yield where, record


def _records_of(file: Path, fields: Sequence[str]) -> Iterator[tuple[str, Record]]:
    if file.suffix not in (PARQUET, ARROW):
        yield from _json_lines(file, fields)
        return
    from ddp_tokens.corpora import arrow_rows  # pyarrow may not be there

    read = arrow_rows.of_parquet if file.suffix == PARQUET else arrow_rows.of_stream
    for number, record in enumerate(read(file), start=1):
        yield f"{file}, row {number}", record


def _json_lines(file: Path, fields: Sequence[str]) -> Iterator[tuple[str, Record]]:
    """Blank lines are skipped."""
    try:
        with open(file, encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                where = f"{file}, line {number}"
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise CorpusError(f"{where}: broken JSON ({error})") from None
                if not isinstance(record, dict):
                    raise CorpusError(f"{where}: a row must be a JSON object with the fields {', '.join(fields)}")
                yield where, record
    except OSError as error:
        raise CorpusError(f"corpus.path {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file} is not UTF-8 text: {error}") from None


def files_of(path: Path) -> dict[str, Path]:
    """Every file that rows are read from, by its name in the folder; a file itself has the name "".

    Raises CorpusError when a folder is not as it must be.
    """
    if not path.is_dir():
        return {"": path}
    files = [part.file for part in _parts(path)]
    files += [file for file in (path / SPLITS_OF_DATASET, *{file.parent / STATE for file in files}) if file.is_file()]
    return {str(file.relative_to(path)): file for file in sorted(files)}


def digest_of(files: Mapping[str, Path]) -> str:
    """Of a file its SHA-256; of a folder that of the JSON that holds each file's by name."""
    digests = {name: sha256(file) for name, file in files.items()}
    return digests[""] if "" in digests else sha256_of_json(digests)


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each file, by which a change is seen without reading it."""
    states = ((name, file.stat()) for name, file in files_of(folder).items())
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]


def _parts(path: Path) -> list[Part]:
    """In the order in which they are read."""
    if not path.is_dir():
        return [Part(path)]
    if (path / SPLITS_OF_DATASET).is_file():
        splits = _names(path / SPLITS_OF_DATASET, "splits")
        return [Part(file, split) for split in splits for file in _files_of_dataset(path / split)]
    if (path / STATE).is_file():
        return [Part(file) for file in _files_of_dataset(path)]
    return [Part(file) for file in _shards(path)]


def _files_of_dataset(folder: Path) -> list[Path]:
    """As state.json lists them. Rows that a selection left out would be in them still, so there may be none."""
    document = _document(folder / STATE)
    if document.get("_indices_data_files"):
        raise CorpusError(f"{folder} holds a selection of rows as indices: `flatten_indices()`, then save it again")
    files = document.get("_data_files")
    listed = files if isinstance(files, list) else [None]
    names: list[Any] = [each.get("filename") if isinstance(each, dict) else None for each in listed]
    if not all(_is_name(name) and name.endswith(ARROW) for name in names):
        raise CorpusError(f"{folder / STATE} does not list the dataset's {ARROW} files: save the dataset again")
    return [folder / name for name in names]


def _names(file: Path, field: str) -> list[str]:
    names = _document(file).get(field)
    if not isinstance(names, list) or not all(map(_is_name, names)):
        raise CorpusError(f"{file} does not list the folders of the dataset's splits: save the dataset again")
    return names


def _is_name(name: Any) -> bool:
    """Of something in a folder, and not outside it."""
    return isinstance(name, str) and name not in ("", "..") and Path(name).name == name


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorpusError(f"{file} cannot be read: {error.strerror}; save the dataset again") from None
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{file} is not valid JSON ({error}): save the dataset again") from None
    if not isinstance(document, dict):
        raise CorpusError(f"{file} holds no JSON object: save the dataset again")
    return document


def _shards(folder: Path) -> list[Path]:
    """By name. What is hidden, such as .DS_Store or _SUCCESS, is left out; of anything else it is unclear."""
    try:
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    except OSError as error:
        raise CorpusError(f"corpus.path {folder} cannot be read: {error.strerror}") from None
    if not files:
        raise CorpusError(
            f"{folder} is an empty folder: it must hold {JSONL} or {PARQUET} files, or what `save_to_disk` "
            "of the package datasets writes"
        )
    other = next((file for file in files if file.suffix not in (JSONL, PARQUET) or not file.is_file()), None)
    if other is not None:
        raise CorpusError(
            f"{folder} holds {other.name}, which is no {JSONL} or {PARQUET} file: take it away, or name "
            "the file of rows itself"
        )
    return files
