"""In place of `DefaultPreBind` in a cluster in memory."""

from typing import Any

from hosting.kubernetes.resources import Manifest


class Writes:
    """Takes the annotations over that pre-bind plugins have made."""

    def __init__(self, args: object, handle: object) -> None:
        del args, handle

    def name(self) -> str:
        return "Writes"

    def pre_bind(self, *_: object) -> None:
        return None

    def apply_patch(self, context: Any, original: Manifest, modified: Manifest) -> None:
        original["metadata"]["annotations"] = modified["metadata"]["annotations"]
