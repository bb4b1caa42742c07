package main

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// faults are how a node misbehaves when the size of a container changes.
type faults struct {
	// UpdateDelayMs is how long the runtime takes for each update. The pod's worker is blocked meanwhile.
	UpdateDelayMs int64 `json:"updateDelayMs"`
	// UpdateError is the text with which the runtime refuses each update; empty means that it accepts.
	UpdateError string `json:"updateError"`
	// ReportLagMs is how much later a container's status shows its new size.
	ReportLagMs int64 `json:"reportLagMs"`
	// CgroupError is the text with which each write of a pod's cgroup fails; empty means that it succeeds.
	CgroupError string `json:"cgroupError"`
}

// usage is what a container seems to use.
type usage struct {
	CPUNano     uint64 `json:"cpuNano"`
	MemoryBytes uint64 `json:"memoryBytes"`
}

// podGroup is the cgroup of a pod, in memory.
type podGroup struct {
	pod    string // NAMESPACE/NAME
	limits cm.ResourceConfig
}

// node is what the replaced parts of one kubelet share.
type node struct {
	name        string
	index       int
	capacity    v1.ResourceList
	allocatable v1.ResourceList
	podNetwork  string // the first two numbers of its pods' addresses

	mu     sync.Mutex // guards what is below
	faults faults
	usages map[string]usage // by NAMESPACE/POD/CONTAINER
	groups map[types.UID]*podGroup
}

// newNode makes a node. Its pods have addresses podNetwork.x.y; where that is empty, on loopback: 127.(64+index).x.y.
func newNode(name string, index int, podNetwork string, capacity, allocatable v1.ResourceList) *node {
	if podNetwork == "" {
		podNetwork = fmt.Sprintf("127.%d", 64+index%128)
	}
	return &node{
		name:        name,
		index:       index,
		podNetwork:  podNetwork,
		capacity:    capacity,
		allocatable: allocatable,
		usages:      map[string]usage{},
		groups:      map[types.UID]*podGroup{},
	}
}

func (n *node) currentFaults() faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults
}

// nodes are all nodes of this process. The control API reads them while further ones start.
type nodes struct {
	mu     sync.Mutex
	byName map[string]*node
}

func newNodes() *nodes {
	return &nodes{byName: map[string]*node{}}
}

func (all *nodes) add(n *node) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.byName[n.name] = n
}

// named is the node of this name, or nil.
func (all *nodes) named(name string) *node {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.byName[name]
}

// each calls visit for every node.
func (all *nodes) each(visit func(*node)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, n := range all.byName {
		visit(n)
	}
}
