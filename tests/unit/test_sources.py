import subprocess
import sys

from ddp_tokens.sources import SOURCE_ROOT, imported_modules, module_path, source_files
from ddp_tokens.steps import PROJECT_ROOT


def names(entry):
    return {str(path.relative_to(PROJECT_ROOT)) for path in source_files(PROJECT_ROOT / entry)}


def test_direct_and_indirect_imports_are_found():
    found = names("workflow_scripts/check_loss.py")
    assert "workflow_scripts/check_loss.py" in found
    assert "src/ddp_tokens/checks/loss.py" in found  # imported by the script
    assert "src/ddp_tokens/normalization.py" in found  # imported by checks/loss.py
    assert "src/ddp_tokens/__init__.py" in found  # runs when anything below it is imported
    assert "src/ddp_tokens/checks/__init__.py" in found


def test_what_is_not_imported_is_not_found():
    found = names("workflow_scripts/check_loss.py")
    assert "src/ddp_tokens/trainer.py" not in found
    assert "src/ddp_tokens/checks/resume.py" not in found


def test_a_module_imported_from_the_package_is_found():
    """`from ddp_tokens import checkpoint_files as names`."""
    assert "src/ddp_tokens/checkpoint_files.py" in names("src/ddp_tokens/checkpoint.py")


def test_every_kind_of_import_is_read(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import json, ddp_tokens.world\n"
        "from ddp_tokens.plan import Plan as P, pools\n"
        "def later():\n"
        "    from ddp_tokens import files\n"
        "from torch import nn\n"
    )
    assert sorted(imported_modules(script)) == [
        "ddp_tokens.files",
        "ddp_tokens.plan.Plan",
        "ddp_tokens.plan.pools",
        "ddp_tokens.world",
    ]
    assert {path.stem for path in source_files(script)} >= {"script", "world", "plan", "files", "rows", "errors"}


def test_a_module_has_a_path_and_a_name_in_it_has_none():
    assert module_path("ddp_tokens.plan") == SOURCE_ROOT / "ddp_tokens" / "plan.py"
    assert module_path("ddp_tokens.corpora") == SOURCE_ROOT / "ddp_tokens" / "corpora" / "__init__.py"
    assert module_path("ddp_tokens.plan.Plan") is None


def test_the_closure_is_that_of_a_real_import():
    """Whatever Python loads of this package for a step, source_files has found."""
    code = "import sys, ddp_tokens.prepare; print(*sorted(n for n in sys.modules if n.split('.')[0] == 'ddp_tokens'))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {module_path(name) for name in loaded} <= set(source_files(SOURCE_ROOT / "ddp_tokens" / "prepare.py"))
    assert len(loaded) > 5
