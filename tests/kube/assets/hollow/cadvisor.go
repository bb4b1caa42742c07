package main

import (
	"context"
	"strings"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
	v1 "k8s.io/api/core/v1"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
)

// advisor tells the kubelet the machine's size and what pods use. The kubelet refuses a memory limit below that use.
type advisor struct {
	*cadvisortest.Fake
	node *node
}

func newAdvisor(n *node) *advisor {
	return &advisor{Fake: &cadvisortest.Fake{NodeName: n.name}, node: n}
}

func (a *advisor) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	cpu, memory := a.node.capacity[v1.ResourceCPU], a.node.capacity[v1.ResourceMemory]
	return &cadvisorapi.MachineInfo{
		NumCores:       int(cpu.Value()),
		MemoryCapacity: uint64(memory.Value()),
		MachineID:      a.node.name,
		SystemUUID:     a.node.name,
		BootID:         a.node.name,
		InstanceID:     cadvisorapi.InstanceID(a.node.name),
	}, nil
}

// ContainerInfoV2 tells the use of a cgroup: of a pod, or of the root with, where that is asked for, everything below it.
func (a *advisor) ContainerInfoV2(
	name string, options cadvisorapiv2.RequestOptions,
) (map[string]cadvisorapiv2.ContainerInfo, error) {
	a.node.mu.Lock()
	defer a.node.mu.Unlock()
	found := map[string]cadvisorapiv2.ContainerInfo{name: info(usage{})}
	var all usage
	for uid, group := range a.node.groups {
		used := a.usageOf(group.pod)
		all.CPUNano += used.CPUNano
		all.MemoryBytes += used.MemoryBytes
		if path := groupPath(uid); path == name || name == "/" && options.Recursive {
			found[path] = info(used)
		}
	}
	if name == "/" {
		found["/"] = info(all)
		if options.Recursive {
			found["/"+cgroupRoot] = info(all)
		}
	}
	return found, nil
}

// usageOf is the sum over the containers of a pod. The caller holds the node's lock.
func (a *advisor) usageOf(pod string) usage {
	var sum usage
	for container, used := range a.node.usages {
		if strings.HasPrefix(container, pod+"/") {
			sum.CPUNano += used.CPUNano
			sum.MemoryBytes += used.MemoryBytes
		}
	}
	return sum
}

func info(used usage) cadvisorapiv2.ContainerInfo {
	now := time.Now()
	return cadvisorapiv2.ContainerInfo{
		Spec: cadvisorapiv2.ContainerSpec{CreationTime: now.Add(-time.Hour), HasCpu: true, HasMemory: true},
		Stats: []*cadvisorapiv2.ContainerStats{{
			Timestamp: now,
			Cpu:       &cadvisorapi.CpuStats{},
			CpuInst:   &cadvisorapiv2.CpuInstStats{Usage: cadvisorapiv2.CpuInstUsage{Total: used.CPUNano}},
			Memory:    &cadvisorapi.MemoryStats{Usage: used.MemoryBytes, WorkingSet: used.MemoryBytes},
		}},
	}
}

// RootFsInfo is a disk with so much room that nothing is ever evicted for it.
func (a *advisor) RootFsInfo() (cadvisorapiv2.FsInfo, error) {
	return cadvisorapiv2.FsInfo{
		Timestamp:  time.Now(),
		Device:     "made-up",
		Mountpoint: "/",
		Capacity:   100 << 30,
		Available:  90 << 30,
		Inodes:     ptr(uint64(1_000_000)),
		InodesFree: ptr(uint64(900_000)),
	}, nil
}

func (a *advisor) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) { return a.RootFsInfo() }

func (a *advisor) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return a.RootFsInfo()
}

func (a *advisor) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error) { return a.RootFsInfo() }
