"""The user's own file: it is imported, and what it raises is told as its own, with its traceback. No torch."""

import importlib
import importlib.util
import sys
import traceback
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FrameType, ModuleType

from ddp_tokens.errors import UserError, WorkloadError
from ddp_tokens.workload_names import Place, own_files, problem_of

_loaded: dict[str, Place] = {}
# By the folder of a file, the modules that it brought from there. Those that use them keep them when another takes over
# the name, but what is found by name later on (an import in a function, pickle) is the one that came last.
_beside: dict[Path, dict[str, ModuleType]] = {}


def load_own(place: Place) -> object:
    """The module, or what it calls `place.attribute`; a class is instantiated.

    Raises WorkloadError when there is no such thing, and for whatever the file raises.
    """
    entry = place.file
    if entry is None:
        raise WorkloadError(str(problem_of(place.name)))
    _loaded[place.name] = place
    try:
        module = module_at(entry) if place.module is None else _module_named(place.module)
        if place.attribute is None:
            return module
        found: object = getattr(module, place.attribute, None)
        if found is None:
            raise WorkloadError(f"{entry} has no {place.attribute}{_others(module)}: mend the name after the colon")
        return found() if isinstance(found, type) else found
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _of_loading(place, entry, error) from error


def raised_by_own_work(error: BaseException) -> WorkloadError | None:
    """What a function of the user's file has raised, as a sentence that names both; None for other errors."""
    if getattr(error, "sigval", None) is not None:  # a signal, which may come anywhere
        return None
    of_file = {str(path): place for place in _loaded.values() for path in own_files(place)}
    step = error.__traceback__
    while step is not None:
        name = str(Path(step.tb_frame.f_code.co_filename).resolve())
        if name in of_file:
            theirs = "".join(traceback.format_exception(type(error), error, step))
            return WorkloadError(
                f"{name}, line {step.tb_lineno}: {_function(step.tb_frame)} raised {type(error).__name__}, as the "
                f"traceback above says: mend workload {of_file[name].name} there, then start again",
                theirs,
            )
        step = step.tb_next
    return None


def _of_loading(place: Place, entry: Path, error: BaseException) -> WorkloadError:
    found = raised_by_own_work(error)
    if found is not None:
        return found
    theirs = "".join(traceback.format_exception(type(error), error, None))
    what = f"{place.attribute}()" if place.attribute and isinstance(error, TypeError) else "importing it"
    return WorkloadError(
        f"{entry}: {what} raised {type(error).__name__}, as is said above: it must be possible to import workload "
        f"{place.name}, and to make it without arguments",
        theirs,
    )


def _function(frame: FrameType) -> str:
    name = frame.f_code.co_qualname
    return "importing it" if name == "<module>" else name


def _others(module: ModuleType) -> str:
    classes = [name for name, value in vars(module).items() if _is_of(module, value)]
    return f" (its classes are {', '.join(classes)})" if classes else " (it defines no class)"


def _is_of(module: ModuleType, value: object) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


@cache
def module_at(path: Path) -> ModuleType:
    """Imported once. Modules beside the file are found first while it is imported, and after all others later on. Those
    of the same name that another file brought from its own folder are not taken for them.
    """
    name = f"own_work_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and other processes look for it
    _give_way(path.parent)
    before = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
        sys.path.append(str(path.parent))
        brought = {name: sys.modules[name] for name in set(sys.modules) - before}
        own = {name: found for name, found in brought.items() if _lies_in(path.parent, name, found)}
        _beside.setdefault(path.parent, {}).update(own)
    return module


def _give_way(folder: Path) -> None:
    """Forgets the names of modules from other folders that `folder` has as well, and recalls those of its own."""
    for other, modules in _beside.items():
        for name, module in modules.items():
            first = name.partition(".")[0]
            is_there_too = (folder / f"{first}.py").is_file() or (folder / first).is_dir()
            if other != folder and is_there_too and sys.modules.get(name) is module:
                del sys.modules[name]
    sys.modules.update(_beside.get(folder, {}))


def _lies_in(folder: Path, name: str, module: ModuleType) -> bool:
    """Was it imported by its name there, alone or as a part of a package?"""
    file, path = getattr(module, "__file__", None), folder.joinpath(*name.split("."))
    return file is not None and Path(file) in (path.with_name(f"{path.name}.py"), path / "__init__.py")


def _module_named(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(name)
