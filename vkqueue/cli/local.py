"""Devices of this machine without a daemon: the only door of the command line to `gpu`, and one that opens no driver
in this process.
"""

from __future__ import annotations

from vkqueue.gpu.probe import DRIVER_FILES, ProbeResult, manifests, probe_devices

__all__ = ["DRIVER_FILES", "ProbeResult", "manifests", "probe_devices"]
