"""The package's version: the one in its metadata, so that it is written once (pyproject.toml)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vkqueue")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"
