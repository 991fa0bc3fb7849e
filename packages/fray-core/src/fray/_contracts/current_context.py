"""Which context runs what is running here; `fray._discovery.current` knows what else may be current."""

from contextvars import ContextVar
from typing import Any

current_context_var: ContextVar[Any] = ContextVar("fray_context")
