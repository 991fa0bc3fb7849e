"""The variables in which a replica finds its ports, and the address of its host."""

PORT_VARIABLE = "FRAY_PORT_"
HOST_ADDRESS = "FRAY_HOST_ADDRESS"
"""The variable with the address by which others reach the host of a replica."""


def port_variable(name: str) -> str:
    """Return the variable in which a replica finds its port of this name."""
    return PORT_VARIABLE + name.upper().replace("-", "_")
