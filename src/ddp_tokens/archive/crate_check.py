"""Is ro-crate-metadata.json that of a Workflow RO-Crate, and does it describe the files that are there?"""

import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from ddp_tokens.archive.crate import TOGETHER
from ddp_tokens.archive.layout import CRATE, INPUTS
from ddp_tokens.files import from_json

CONFORMS_TO = ("https://w3id.org/ro/crate/1.1", "https://w3id.org/workflowhub/workflow-ro-crate/1.0")
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
NEEDED = ("name", "description", "datePublished", "license")
WORKFLOW = "ComputationalWorkflow"
ROOT = "./"
# Below these, a folder that is described stands for the files in it; anywhere else, each is described by itself.
BY_THEIR_FOLDER = (*TOGETHER, f"{INPUTS}/")


def problems_of_crate(data: bytes | None, names: Collection[str]) -> list[str]:
    """`data`: what ro-crate-metadata.json holds, None where it is not there. `names`: of all files of the archive."""
    if data is None:
        return [f"{CRATE} is missing"]
    try:
        metadata = from_json(data.decode())
    except (ValueError, RecursionError) as error:
        return [f"{CRATE} is not valid JSON ({error})"]
    if not isinstance(metadata, dict) or not metadata:
        return [f"{CRATE} holds no fields"]
    try:
        crate, warned = _read(metadata)
        problems = [
            *warned,
            *_of_descriptor(metadata, crate),
            *_of_root(metadata, crate, names),
            *_of_files(crate, names),
        ]
    except Exception as error:  # what the library and a look at its entities raise of what is no crate
        return [f"{CRATE} is no RO-Crate: {type(error).__name__} ({str(error)[:200]})"]
    return [f"{CRATE}: {problem}" for problem in problems]


def _read(metadata: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """By the library, which is imported here since it loads a client for the web. It takes no look at the files."""
    from rocrate.rocrate import ROCrate

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        crate = ROCrate(json.loads(json.dumps(metadata)))  # it takes apart what it is given
    return crate, [str(of.message) for of in warned if issubclass(of.category, UserWarning)]


def _of_descriptor(metadata: Mapping[str, Any], crate: Any) -> list[str]:
    stated = [_id(value) for value in _list(_stated(metadata, crate.metadata.id).get("conformsTo"))]
    problems = [f"its descriptor does not conform to {profile}" for profile in CONFORMS_TO if profile not in stated]
    if CONTEXT not in _list(metadata["@context"]):
        problems.append(f"its context is not {CONTEXT}")
    if crate.root_dataset.id != ROOT:
        problems.append(f"its root is {crate.root_dataset.id!r}, not {ROOT!r}")
    return problems


def _of_root(metadata: Mapping[str, Any], crate: Any, names: Collection[str]) -> list[str]:
    stated = _stated(metadata, crate.root_dataset.id)
    problems = [f"the root lacks {field}" for field in NEEDED if not stated.get(field)]
    main = crate.root_dataset.get("mainEntity")
    if main is None or isinstance(main, str) or WORKFLOW not in _list(main.type):
        problems.append(f"mainEntity is no {WORKFLOW}")
    elif unquote(main.id) not in names:
        problems.append(f"mainEntity is {main.id}, which is no file of the archive")
    return problems


def _stated(metadata: Mapping[str, Any], entity: str) -> Mapping[str, Any]:
    """As the file has it: the library adds what is missing, such as the time of reading as datePublished."""
    return next(of for of in metadata["@graph"] if of["@id"] == entity)


def _of_files(crate: Any, names: Collection[str]) -> list[str]:
    files, folders = _local(crate)
    present = {folder for name in names for folder in _folders_of(name)}
    problems = [f"{name} is described and not there" for name in sorted(files - set(names))]
    problems += [f"folder {folder} is described and not there" for folder in sorted(folders - present)]
    for name in sorted({*names} - files - {CRATE}):
        if not (name.startswith(BY_THEIR_FOLDER) and any(folder in folders for folder in _folders_of(name))):
            problems.append(f"{name} is not described")
    return problems


def _folders_of(name: str) -> Iterator[str]:
    """All that the file lies in, each with "/" at its end."""
    end = name.find("/")
    while end >= 0:
        yield name[: end + 1]
        end = name.find("/", end + 1)


def _local(crate: Any) -> tuple[set[str], set[str]]:
    """Paths of the data entities that are no addresses: of files, and of folders, which end in "/"."""
    files: set[str] = set()
    folders: set[str] = set()
    for entity in crate.data_entities:
        if urlsplit(entity.id).scheme or entity.id.startswith("#"):
            continue
        path = unquote(entity.id).removeprefix(ROOT)
        if "Dataset" in _list(entity.type):
            folders.add(f"{path.removesuffix('/')}/")
        else:
            files.add(path)
    return files, folders


def _id(value: Any) -> Any:
    return value["@id"] if isinstance(value, dict) else value


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]
