"""Bodies as kube-scheduler 1.35 sends them, written by hand: top-level keys by Go's names, null for what is not set, nested objects by
the names of the API and without kind and apiVersion."""

from typing import Final

POD: Final = """{
  "metadata": {"name": "web-1", "namespace": "shop", "uid": "7a3f2c9e-0c57-4b0e-9b52-5d1f1d0f7a10", "resourceVersion": "812",
    "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"}, "managedFields": null},
  "spec": {"containers": [{"name": "main", "image": "web:1", "resources": {
      "limits": {"cpu": "2", "memory": "1Gi", "parley.dev/managed": "1"},
      "requests": {"cpu": "500m", "memory": "512Mi", "parley.dev/managed": "1"}},
      "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent"}],
    "restartPolicy": "Always", "schedulerName": "default-scheduler", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"},
  "status": {"phase": "Pending", "qosClass": "Burstable"}}"""
NODE: Final = """{"metadata": {"name": "%s", "uid": "n-%s", "labels": {"kubernetes.io/hostname": "%s"}},
  "spec": {"podCIDR": "10.0.0.0/24", "unheardOf": {"kept": [1, 2.50, null]}},
  "status": {"capacity": {"cpu": "4", "memory": "4Gi"}, "allocatable": {"cpu": "4", "memory": "4Gi"}, "images": null}}"""
BY_NAMES: Final = f'{{"Pod": {POD}, "Nodes": null, "NodeNames": ["a", "b"]}}'
WHOLE_NODES: Final = f'{{"Pod": {POD}, "Nodes": {{"metadata": {{}}, "items": [{NODE % ("a", "a", "a")}, {NODE % ("b", "b", "b")}]}}, "NodeNames": null}}'
BIND: Final = """{"PodName": "web-1", "PodNamespace": "shop", "PodUID": "7a3f2c9e-0c57-4b0e-9b52-5d1f1d0f7a10", "Node": "a"}"""
META_VICTIMS: Final = f"""{{"Pod": {POD}, "NodeNameToVictims": null, "NodeNameToMetaVictims": {{
  "a": {{"Pods": [{{"UID": "uid-one"}}, {{"UID": "uid-two"}}], "NumPDBViolations": 1}},
  "b": {{"Pods": null, "NumPDBViolations": 0}}}}}}"""
VICTIMS: Final = f"""{{"Pod": {POD}, "NodeNameToMetaVictims": null, "NodeNameToVictims": {{
  "a": {{"Pods": [{{"metadata": {{"name": "one", "namespace": "shop", "uid": "uid-one"}}, "spec": {{"nodeName": "a"}}}}],
    "NumPDBViolations": 0}}}}}}"""
