"""The options of a LocalCluster as older programs pass them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalClusterConfig:
    """Options of `LocalCluster`, passed first; today they are its keywords.

    Args:
        use_isolated_env: As the keyword.
    """

    use_isolated_env: bool = False
