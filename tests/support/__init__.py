"""What tests of several rooms share. Look here before you write a helper a second time.

- `amounts`: `cu(2)`, `UNIT`, `GIB`.
- `waiting`: `until` a condition of this process holds; `shown` by another process (`shown_blocking` without an event loop).
- `virtual_time`: `@virtually` runs a test in a loop that never waits; `now_s()`, `turns()`.
- `servers`: `answering` serves a function on loopback, `FaultyPeer` fails as told, `Certain` is chance without chance.
- `pages`: `paged` serves one answer to the commands that ask an agent.
- `processes`: `running` starts a real program, `free_port`, `fetch`, `post`, and the files that the programs read.
- `evictions`: pods, fakes and flags around a QoS strategy that evicts.
- `made_up_plugins`: plugins behind paths without files, and connections to them, for a virtual clock.
- `node_plugins`: `managed` runs the plugin manager over a folder; `NotingHandler` takes every plugin, and notes what was asked.
- `kube`: a real control plane's programs, and `Objects` of a namespace; its fixtures are in `kube/fixtures.py`. `kube/faulty_api.py` is a faulty
  way to the API server, `kube/under_load.py` a cluster under load with everybody who looks on. `kube/placing.py` has kube-scheduler with our extender on nodes
  without kubelets, `kube/extender.py` a proxy between the two, `kube/growing.py` pods that grow there and a watch that adds up.
"""
