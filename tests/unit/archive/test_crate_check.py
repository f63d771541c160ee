"""What makes the metadata those of a Workflow RO-Crate that describes the archive."""

import json

import pytest

from ddp_tokens.archive.crate_check import problems_of_crate
from ddp_tokens.archive.layout import CRATE
from tests.unit.archive.made import FILES, WORKFLOW, crate

NAMES = [*FILES, CRATE]


def problems(metadata, names=NAMES):
    return problems_of_crate(json.dumps(metadata).encode(), names)


def entity(metadata, name):
    return next(of for of in metadata["@graph"] if of["@id"] == name)


def test_a_workflow_ro_crate():
    assert problems(crate(FILES)) == []


def test_a_folder_describes_what_is_in_it():
    """source/ as one Dataset, as a name with %20 in it, and an address, which is nothing of the archive."""
    metadata = crate([name for name in FILES if not name.startswith("source/")])
    more = [
        {"@id": "source/", "@type": "Dataset"},
        {"@id": "inputs/two%20words.txt", "@type": "File"},
        {"@id": "https://example.org/data", "@type": "File"},
    ]
    metadata["@graph"] += more
    entity(metadata, "./")["hasPart"] += [{"@id": of["@id"]} for of in more]
    assert problems(metadata, [*NAMES, "source/a/b.py", "inputs/two words.txt"]) == []
    assert problems(metadata) == [f"{CRATE}: inputs/two words.txt is described and not there"]


def with_folders(metadata, *folders):
    added = [{"@id": folder, "@type": "Dataset"} for folder in folders]
    metadata["@graph"] += added
    entity(metadata, "./")["hasPart"] += [{"@id": of["@id"]} for of in added]
    return metadata


FOLDERS = ("results/", "results/tiny/", "machine/", "source/", "results/controls/")


@pytest.mark.parametrize("name", [name for name in FILES if name != WORKFLOW])
def test_beside_its_folder_each_file_is_described_by_itself(name):
    """Nor does one that is described as a folder stand for a file."""
    more = ["results/controls/controls.json", "results/controls/cases/a/b.json", "source/a/b.py"]
    names = [*NAMES, *more]
    described = [of for of in [*FILES, more[0]] if of != name]
    assert problems(with_folders(crate([*described, name]), *FOLDERS), names) == []
    assert problems(with_folders(crate(described), *FOLDERS), names) == [f"{CRATE}: {name} is not described"]
    found = problems(with_folders(crate(described), *FOLDERS, name), names)
    assert f"{CRATE}: {name} is not described" in found
    assert f"{CRATE}: folder {name}/ is described and not there" in found


@pytest.mark.parametrize(
    "name", ["results/controls/controls.json", "results/controls/further/a", "results/tiny/cases/a"]
)
def test_only_what_is_known_to_be_many_files_is_described_by_its_folder(name):
    metadata = with_folders(crate(FILES), "results/", "results/controls/", "results/tiny/")
    many = [f"results/controls/{folder}/a/b" for folder in ("cases", "ranks", "trained")]
    assert problems(metadata, [*NAMES, *many, name]) == [f"{CRATE}: {name} is not described"]
    assert problems(crate(FILES), [*NAMES, *many]) == [f"{CRATE}: {of} is not described" for of in many]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, " is missing"),
        (b"{", " is not valid JSON (Expecting property name"),
        (b"\xff", " is not valid JSON ('utf-8' codec"),
        (b"[" * 10_000, " is not valid JSON (maximum recursion"),
        (b"[]", " holds no fields"),
        (b"{}", " holds no fields"),
        (b'{"a": 1}', " is no RO-Crate: ValueError ("),
        (b'{"@context": [], "@graph": []}', " is no RO-Crate: KeyError ("),
        (b'{"@context": [], "@graph": [3]}', " is no RO-Crate: TypeError ("),
        (b'{"@context": [], "@graph": 3}', " is no RO-Crate: TypeError ("),
    ],
)
def test_no_crate(data, problem):
    [found] = problems_of_crate(data, NAMES)
    assert found.startswith(CRATE + problem)


@pytest.mark.parametrize("field", ["name", "description", "datePublished", "license"])
def test_the_root_needs(field):
    assert problems(crate(FILES, **{field: ""})) == [f"{CRATE}: the root lacks {field}"]
    metadata = crate(FILES)
    del entity(metadata, "./")[field]
    assert problems(metadata) == [f"{CRATE}: the root lacks {field}"]


@pytest.mark.parametrize("index", [0, 1])
def test_the_descriptor_names_both_profiles(index):
    metadata = crate(FILES)
    profile = entity(metadata, CRATE)["conformsTo"].pop(index)["@id"]
    assert problems(metadata) == [f"{CRATE}: its descriptor does not conform to {profile}"]
    del entity(metadata, CRATE)["conformsTo"]
    assert len(problems(metadata)) == 2


def test_the_context_is_that_of_the_version():
    metadata = crate(FILES)
    metadata["@context"] = "https://example.org/other"
    assert problems(metadata) == [f"{CRATE}: its context is not https://w3id.org/ro/crate/1.1/context"]
    metadata["@context"] = ["https://w3id.org/ro/crate/1.1/context", {"term": "https://example.org/term"}]
    assert problems(metadata) == []


def test_the_main_entity_is_a_workflow_in_the_archive():
    assert problems(crate(FILES, mainEntity={"@id": "LICENSE"})) == [f"{CRATE}: mainEntity is no ComputationalWorkflow"]
    for missing in (None, "source/Snakefile", {"@id": "nothing"}):
        assert problems(crate(FILES, mainEntity=missing)) == [f"{CRATE}: mainEntity is no ComputationalWorkflow"]
    assert problems(crate(FILES), [name for name in NAMES if name != WORKFLOW]) == [
        f"{CRATE}: mainEntity is {WORKFLOW}, which is no file of the archive",
        f"{CRATE}: {WORKFLOW} is described and not there",
    ]


def test_what_is_described_is_there_and_what_is_there_is_described():
    assert problems(crate([*FILES, "gone.txt"])) == [f"{CRATE}: gone.txt is described and not there"]
    assert problems(crate(FILES), [*NAMES, "more.txt"]) == [f"{CRATE}: more.txt is not described"]
    metadata = crate(FILES)
    metadata["@graph"].append({"@id": "gone/", "@type": "Dataset"})
    entity(metadata, "./")["hasPart"].append({"@id": "gone/"})
    assert problems(metadata) == [f"{CRATE}: folder gone/ is described and not there"]


def test_an_entity_that_the_root_does_not_list():
    metadata = crate(FILES)
    entity(metadata, "./")["hasPart"] = [of for of in entity(metadata, "./")["hasPart"] if of["@id"] != "LICENSE"]
    found = problems(metadata)
    assert f"{CRATE}: 'LICENSE' looks like a data entity but it's not listed in the root dataset's hasPart" in found
    assert f"{CRATE}: LICENSE is not described" in found
