"""The file systems of a FileQueue: local disks, and object stores through fsspec."""
