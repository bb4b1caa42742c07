"""The Events for the owners of pods."""

import json

from tests.support.kube.objects import Objects


def events_of(objects: Objects, name: str) -> dict[str, str]:
    """The notes of the Events about an object of the namespace, by reason."""
    path = f"/apis/events.k8s.io/v1/namespaces/{objects.namespace}/events"
    found = json.loads(objects.plane.call("GET", path))["items"]
    return {
        each["reason"]: each["note"]
        for each in found
        if each["regarding"]["name"] == name and each.get("reportingController") == "parley.dev/agent"
    }
