"""What a job finds around it: packages, variables, a working directory."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fray._values.checks import invalid
from fray._values.options import check_env

_PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment of a job's replicas.

    Args:
        workspace: The working directory; None for the launcher's own.
        docker_image: An image reference, for clusters that run containers.
        pip_packages: Requirement strings to install for this job, e.g. `["numpy>=2"]`.
        env_vars: Variables to set; their values are secrets and are never shown.
        extras: Extras of the workspace's own project to install.
        dependency_groups: Dependency groups of the workspace's own project to install.
        python: The Python of the job, e.g. `"3.12"`; None for the launcher's own if the project's
            `requires-python` allows it, else for one that it allows.
    """

    workspace: Path | str | None = None
    docker_image: str | None = None
    pip_packages: Iterable[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    extras: Iterable[str] = ()
    dependency_groups: Iterable[str] = ()
    python: str | None = None

    def __post_init__(self) -> None:
        for name in ("pip_packages", "extras", "dependency_groups"):
            object.__setattr__(self, name, _words(name, getattr(self, name)))
        object.__setattr__(self, "env_vars", check_env("env_vars", self.env_vars))
        if self.workspace is not None:
            if not isinstance(self.workspace, str | os.PathLike):
                raise invalid("workspace", "a path", self.workspace)
            object.__setattr__(self, "workspace", Path(self.workspace).expanduser().absolute())
        if self.docker_image is not None and (
            not isinstance(self.docker_image, str) or not self.docker_image
        ):
            raise invalid("docker_image", "an image reference", self.docker_image)
        if self.python is not None and (
            not isinstance(self.python, str) or not _PYTHON.fullmatch(self.python)
        ):
            raise invalid("python", "a version such as '3.12' or '3.12.4'", self.python)

    @classmethod
    def create(
        cls,
        workspace: Path | str | None = None,
        docker_image: str | None = None,
        pip_packages: Iterable[str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        extras: Iterable[str] | None = None,
        dependency_groups: Iterable[str] | None = None,
        python: str | None = None,
        *,
        extra_dependency_groups: Iterable[str] | None = None,
    ) -> "EnvironmentConfig":
        """Describe an environment; None is "not said".

        `extra_dependency_groups` is the older name of `extras`.
        """
        named = {"extras": extras, "extra_dependency_groups": extra_dependency_groups}
        merged = dict.fromkeys(word for name, given in named.items() for word in _words(name, _said(given)))
        return cls(
            workspace,
            docker_image,
            _said(pip_packages),
            {} if env_vars is None else env_vars,
            merged,
            _said(dependency_groups),
            python,
        )

    @property
    def builds(self) -> bool:
        """Whether the job needs an environment of its own: packages, parts of a project, or a Python."""
        return bool(self.pip_packages or self.extras or self.dependency_groups or self.python)

    def to_dict(self) -> dict[str, Any]:
        """Return what may be shown: the variables by name, without their values."""
        return {
            "workspace": None if self.workspace is None else str(self.workspace),
            "docker_image": self.docker_image,
            "pip_packages": list(self.pip_packages),
            "env_vars": sorted(self.env_vars),
            "extras": list(self.extras),
            "dependency_groups": list(self.dependency_groups),
            "python": self.python,
        }


create_environment = EnvironmentConfig.create


def _said(given: Iterable[str] | None) -> Iterable[str]:
    return () if given is None else given


def _words(what: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise invalid(what, "a list of names", given)
    words = tuple(given)
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise invalid(f"each of {what}", "a name", word)
    return words
