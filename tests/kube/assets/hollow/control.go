package main

import (
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"net/http"
)

// groupState is the cgroup of a pod as GET /state shows it.
type groupState struct {
	MemoryBytes int64  `json:"memoryBytes"`
	CPUQuotaUs  int64  `json:"cpuQuotaUs"`
	CPUShares   uint64 `json:"cpuShares"`
}

// nodeState is a node as GET /state shows it.
type nodeState struct {
	Faults     faults                `json:"faults"`
	PodCgroups map[string]groupState `json:"podCgroups"` // by NAMESPACE/NAME
}

// controlAPI is what a test steers the nodes with:
//
//	GET  /state               each node's faults, and the cgroups of its pods
//	POST /faults?node=NAME    replaces the node's faults; {} heals the node
//	POST /usage?node=NAME     {"NAMESPACE/POD/CONTAINER": {"cpuNano": …, "memoryBytes": …}}; others keep theirs
func controlAPI(all *nodes) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /faults", change(all, func(n *node, wanted faults) error {
		if wanted.UpdateDelayMs < 0 || wanted.ReportLagMs < 0 {
			return fmt.Errorf("delays must be 0 or more, not %d and %d", wanted.UpdateDelayMs, wanted.ReportLagMs)
		}
		n.faults = wanted
		return nil
	}))
	routes.HandleFunc("POST /usage", change(all, func(n *node, wanted map[string]usage) error {
		maps.Copy(n.usages, wanted)
		return nil
	}))
	routes.HandleFunc("GET /state", func(response http.ResponseWriter, _ *http.Request) {
		response.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(response).Encode(state(all)); err != nil {
			log.Printf("GET /state: %v", err)
		}
	})
	return routes
}

// change is a handler that takes a JSON body into the node which the query names. apply runs under the node's lock.
func change[T any](all *nodes, apply func(*node, T) error) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		n := all.named(request.URL.Query().Get("node"))
		if n == nil {
			http.Error(response, "?node= must name a node of this process", http.StatusNotFound)
			return
		}
		var wanted T
		body := json.NewDecoder(request.Body)
		body.DisallowUnknownFields()
		if err := body.Decode(&wanted); err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if err := apply(n, wanted); err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
		}
	}
}

func state(all *nodes) map[string]nodeState {
	found := map[string]nodeState{}
	all.each(func(n *node) {
		n.mu.Lock()
		defer n.mu.Unlock()
		groups := map[string]groupState{}
		for _, group := range n.groups {
			limits := group.limits
			groups[group.pod] = groupState{
				MemoryBytes: *limits.Memory, CPUQuotaUs: *limits.CPUQuota, CPUShares: *limits.CPUShares,
			}
		}
		found[n.name] = nodeState{Faults: n.faults, PodCgroups: groups}
	})
	return found
}
