"""The kinds of patches, as content types. Source: the API concepts of Kubernetes, "Updates to existing resources"."""

from typing import Final

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
