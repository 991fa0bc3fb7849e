"""The package as a whole."""

import subprocess
import sys

import fray_resources

# These alone cost more than the 10 ms that importing the package may.
TOO_SLOW = {"dataclasses", "typing", "re", "inspect", "enum"}


def imported_by(statement: str) -> set[str]:
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_importing_loads_the_standard_library_alone_and_none_of_its_slow_modules() -> None:
    loaded = imported_by("import fray_resources")
    assert loaded <= sys.stdlib_module_names | {"fray_resources"}
    assert not loaded & TOO_SLOW


def test_using_everything_loads_the_standard_library_alone() -> None:
    loaded = imported_by(
        "import dataclasses, pickle, fray_resources as f; c = f.ResourceConfig.with_tpu('v5e-16'); "
        "c.total_flops('bf16'); dataclasses.replace(c, cpu=2); pickle.loads(pickle.dumps(c)); c.to_dict()"
    )
    assert loaded <= sys.stdlib_module_names | {"fray_resources"}


def test_all_lists_every_public_name_in_order() -> None:
    public = {name for name in vars(fray_resources) if not name.startswith("_")}
    assert set(fray_resources.__all__) == public
    assert fray_resources.__all__ == sorted(fray_resources.__all__)
