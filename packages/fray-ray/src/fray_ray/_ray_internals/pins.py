"""How long the head keeps a workspace that no job uses yet."""

from ray.experimental import internal_kv


def pin_package(uri: str, seconds: int) -> None:
    """Have the head keep a package for so many seconds, used or not. Read in Ray 2.60."""
    internal_kv._pin_runtime_env_uri(uri, expiration_s=seconds)
