"""The package of an older path, `fray.backend.ray.ray_deps`."""
