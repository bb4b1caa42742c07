package main

import (
	"errors"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

const (
	cgroupRoot = "kubepods"
	podPrefix  = "pod"
	// cpuPeriodUs is the period of CPU limits that kubelets use.
	cpuPeriodUs = 100_000
	// unlimitedMemory is what the kernel shows where a group has no limit.
	unlimitedMemory = 9223372036854771712
	unlimitedCPU    = -1
	leastShares     = 2
)

// containerManager knows the size of the node; everything else is the embedded stub's.
type containerManager struct {
	cm.ContainerManager
	node *node
}

func (m *containerManager) GetNodeConfig() cm.NodeConfig {
	return cm.NodeConfig{
		NodeName:            types.NodeName(m.node.name),
		CgroupsPerQOS:       true, // else the groups of pods that have gone are never removed
		CgroupRoot:          "/",
		CgroupVersion:       2,
		CPUManagerPolicy:    "none",
		MemoryManagerPolicy: "None",
	}
}

func (m *containerManager) GetPodCgroupRoot() string { return "/" + cgroupRoot }

func (m *containerManager) GetCapacity(bool) v1.ResourceList { return m.node.capacity }

func (m *containerManager) GetNodeAllocatableAbsolute() v1.ResourceList { return m.node.allocatable }

func (m *containerManager) GetNodeAllocatableReservation() v1.ResourceList {
	reserved := v1.ResourceList{}
	for name, capacity := range m.node.capacity {
		left := capacity.DeepCopy()
		left.Sub(m.node.allocatable[name])
		reserved[name] = left
	}
	return reserved
}

func (m *containerManager) NewPodContainerManager() cm.PodContainerManager {
	return &podContainerManager{node: m.node}
}

// podContainerManager keeps the pods' cgroups in memory. It is the whole interface, so that a method which a newer kubelet
// adds is a fault of the build.
type podContainerManager struct {
	node *node
}

var _ cm.PodContainerManager = (*podContainerManager)(nil)

func groupName(uid types.UID) cm.CgroupName {
	return cm.CgroupName{cgroupRoot, podPrefix + string(uid)}
}

func groupPath(uid types.UID) string {
	return "/" + cgroupRoot + "/" + podPrefix + string(uid)
}

func (p *podContainerManager) GetPodContainerName(pod *v1.Pod) (cm.CgroupName, string) {
	return groupName(pod.UID), groupPath(pod.UID)
}

func (p *podContainerManager) Exists(pod *v1.Pod) bool {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.node.groups[pod.UID] != nil
}

func (p *podContainerManager) EnsureExists(_ klog.Logger, pod *v1.Pod) error {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.ensure(pod)
	return nil
}

// ensure is the pod's group, made from its spec where there is none yet. The caller holds the node's lock.
func (p *podContainerManager) ensure(pod *v1.Pod) *podGroup {
	group := p.node.groups[pod.UID]
	if group == nil {
		// The kubelet reads through these pointers without a look: none may be nil.
		limits := cm.ResourceConfig{
			Memory:    ptr(int64(unlimitedMemory)),
			CPUQuota:  ptr(int64(unlimitedCPU)),
			CPUPeriod: ptr(uint64(cpuPeriodUs)),
			CPUShares: ptr(uint64(leastShares)),
		}
		merge(&limits, cm.ResourceConfigForPod(pod, true, cpuPeriodUs, false))
		group = &podGroup{pod: pod.Namespace + "/" + pod.Name, limits: limits}
		p.node.groups[pod.UID] = group
	}
	return group
}

func (p *podContainerManager) Destroy(_ klog.Logger, name cm.CgroupName) error {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if len(name) > 0 {
		delete(p.node.groups, types.UID(strings.TrimPrefix(name[len(name)-1], podPrefix)))
	}
	return nil
}

func (p *podContainerManager) ReduceCPULimits(klog.Logger, cm.CgroupName) error { return nil }

func (p *podContainerManager) GetAllPodsFromCgroups() (map[types.UID]cm.CgroupName, error) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	found := map[types.UID]cm.CgroupName{}
	for uid := range p.node.groups {
		found[uid] = groupName(uid)
	}
	return found, nil
}

func (p *podContainerManager) IsPodCgroup(string) (bool, types.UID) { return false, "" }

func (p *podContainerManager) GetPodCgroupMemoryUsage(*v1.Pod) (uint64, error) { return 0, nil }

func (p *podContainerManager) GetPodCgroupConfig(pod *v1.Pod, name v1.ResourceName) (*cm.ResourceConfig, error) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	limits := p.ensure(pod).limits
	if name == v1.ResourceMemory {
		return &cm.ResourceConfig{Memory: limits.Memory}, nil
	}
	return &cm.ResourceConfig{CPUQuota: limits.CPUQuota, CPUPeriod: limits.CPUPeriod, CPUShares: limits.CPUShares}, nil
}

func (p *podContainerManager) SetPodCgroupConfig(_ klog.Logger, pod *v1.Pod, wanted *cm.ResourceConfig) error {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if p.node.faults.CgroupError != "" {
		return errors.New(p.node.faults.CgroupError)
	}
	merge(&p.ensure(pod).limits, wanted)
	return nil
}

// merge takes over what is set. Pointers are replaced and never written through, so that nobody sees a change of what it was given.
func merge(limits *cm.ResourceConfig, wanted *cm.ResourceConfig) {
	if wanted.Memory != nil {
		limits.Memory = ptr(*wanted.Memory)
	}
	if wanted.CPUQuota != nil {
		limits.CPUQuota = ptr(*wanted.CPUQuota)
	}
	if wanted.CPUPeriod != nil {
		limits.CPUPeriod = ptr(*wanted.CPUPeriod)
	}
	if wanted.CPUShares != nil {
		limits.CPUShares = ptr(*wanted.CPUShares)
	}
}

func ptr[T any](value T) *T { return &value }
