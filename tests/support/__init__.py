"""The helpers that tests of several folders share. Look here before you write a helper a second time.

- `amounts`: `cu(2)`, `UNIT`, `GIB`.
- `waiting`: `until` a condition of this process holds; `shown` by another process (`shown_blocking` without an event loop).
- `virtual_time`: `@virtually` runs a test in a loop that never waits; `now_s()`, `turns()`.
- `servers`: `answering` serves a function on loopback, `FaultyPeer` fails as told, `Certain` is chance without chance.
- `qemu`: a QEMU machine and its guest that are made up, with the measured behaviour of real ones.
- `openapi`: `document_faults` lists the faults of an OpenAPI document.
- `log_keys`: the keys of log lines about decisions, of the scheduler and of the agent.
- `pages`: `paged` serves one answer to the commands that ask an agent.
- `processes`: `running` starts a real program, `free_port`, `fetch`, `post`, and the files that the programs read.
- `our_programs`: `Ours` is one of them that an async test starts, kills and starts again at its address; `together` runs several.
- `vm_house`: a scheduler and an agent around real guests; `vm_looks` has the view of each side of these, and the leftovers.
- `early_framework`: frameworks that are built as in the time of seed 001, and what a framework shares with nobody (`unshared`).
- `evictions`: pods, fakes and args around a QoS strategy that evicts.
- `made_up_plugins`: plugins behind paths without files, and connections to them, for a virtual clock.
- `node_plugins`: `managed` runs the plugin manager over a folder; `NotingHandler` takes every plugin, and notes the questions.
- `vms`: real guests (`Guests`), a root shell in one (`shell_of`), a directory that goes with its runner (`guarded_directory`, by `guardian`).
- `watch_assets`: Debian's Prometheus and promtool, and Chromium: found for a test, or got by `make watch-assets`.
- `kube`: a real control plane's programs, and `Objects` of a namespace; its fixtures are in `kube/fixtures.py`. `kube/faulty_api.py` is a faulty
  way to the API server, `kube/under_load.py` a cluster under load with everybody who looks on. `kube/placing.py` has kube-scheduler with our extender on nodes
  without kubelets, `kube/extender.py` a proxy between the two, `kube/growing.py` pods that grow there and a watch that adds up.
  `kube/node_of_programs.py` has Parley installed as its documents say, with its real programs, and `kube/plugin.py` kubectl with Parley's plugin.
"""
