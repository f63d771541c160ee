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
    """Imported once. Modules beside the file are found first while it is imported, and after all others later on."""
    name = f"own_work_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and other processes look for it
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
        sys.path.append(str(path.parent))
    return module


def _module_named(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(name)
