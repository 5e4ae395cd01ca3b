"""The data path of dd-proxy: one endpoint for the replicas of one model.

Owns the version of the whole project and nothing else.
"""

from __future__ import annotations

__version__ = "0.1.0"
