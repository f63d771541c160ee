import json
import platform
import sys
from types import ModuleType

import numpy

from ddp_tokens.imported import imported_versions


def module(name, **attributes):
    made = ModuleType(name)
    made.__dict__.update(attributes)
    return made


def test_versions_are_those_of_the_modules_themselves():
    modules = {"numpy": numpy, "numpy.linalg": numpy.linalg, "one": module("one", __version__="1.0+cpu")}
    assert imported_versions(modules) == {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "one": "1.0+cpu",
    }


def test_what_states_none_is_asked_of_its_metadata_or_left_out():
    modules = {"packaging": module("packaging"), "nothing": module("nothing"), "odd": module("odd", __version__=3)}
    found = imported_versions(modules)
    assert set(found) == {"python", "packaging"}


def test_the_standard_library_and_the_project_are_not_packages():
    modules = {name: sys.modules[name] for name in ("json", "re", "ddp_tokens", "ddp_tokens.imported")}
    assert json.__version__  # it states one
    assert list(imported_versions(modules)) == ["python"]


def test_a_version_is_plain_text():
    class Version(str):
        __slots__ = ()

    found = imported_versions({"torch": module("torch", __version__=Version("2.13.0"))})["torch"]
    assert type(found) is str
