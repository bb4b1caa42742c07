package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"
)

// containerSize is what a container has, and what its status shows.
type containerSize struct {
	shown  *runtimeapi.LinuxContainerResources
	actual *runtimeapi.LinuxContainerResources
	since  time.Time // the status shows the actual size from then on
}

// runtimeService is Kubernetes' fake runtime, without a socket, and with sizes.
type runtimeService struct {
	*apitest.FakeRuntimeService
	node *node

	mu       sync.Mutex
	sizes    map[string]*containerSize // by container ID
	commands map[string][]string       // by container ID
}

func newRuntimeService(n *node) *runtimeService {
	fake := apitest.NewFakeRuntimeService()
	fake.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}
	return &runtimeService{FakeRuntimeService: fake, node: n, sizes: map[string]*containerSize{}, commands: map[string][]string{}}
}

func (r *runtimeService) CreateContainer(
	ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	id, err := r.FakeRuntimeService.CreateContainer(ctx, sandboxID, config, sandbox)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	size := config.GetLinux().GetResources()
	r.sizes[id] = &containerSize{shown: size, actual: size}
	r.commands[id] = config.Command
	return id, nil
}

// endsAtOnce are commands of init containers: they are over as soon as they have started. All others run until they are stopped.
var endsAtOnce = []string{"chown", "true"}

func (r *runtimeService) StartContainer(ctx context.Context, id string) error {
	if err := r.FakeRuntimeService.StartContainer(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	command := r.commands[id]
	r.mu.Unlock()
	if len(command) > 0 && slices.Contains(endsAtOnce, command[0]) {
		return r.FakeRuntimeService.StopContainer(ctx, id, 0)
	}
	return nil
}

func (r *runtimeService) RemoveContainer(ctx context.Context, id string) error {
	r.mu.Lock()
	delete(r.sizes, id)
	delete(r.commands, id)
	r.mu.Unlock()
	return r.FakeRuntimeService.RemoveContainer(ctx, id)
}

func (r *runtimeService) UpdateContainerResources(
	_ context.Context, id string, wanted *runtimeapi.ContainerResources,
) error {
	faults := r.node.currentFaults()
	time.Sleep(time.Duration(faults.UpdateDelayMs) * time.Millisecond)
	if faults.UpdateError != "" {
		return errors.New(faults.UpdateError)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	size := r.sizes[id]
	if size == nil {
		return fmt.Errorf("container %q not found", id)
	}
	size.show(time.Now())
	size.actual = merged(size.actual, wanted.GetLinux())
	size.since = time.Now().Add(time.Duration(faults.ReportLagMs) * time.Millisecond)
	return nil
}

// show lets the status follow the actual size, once that is due.
func (s *containerSize) show(now time.Time) {
	if !now.Before(s.since) {
		s.shown = s.actual
	}
}

// merged is the old size with what is set in the new one: runtimes leave what is zero as it was.
func merged(old, wanted *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{
		CpuPeriod:          nonZero(wanted.GetCpuPeriod(), old.GetCpuPeriod()),
		CpuQuota:           nonZero(wanted.GetCpuQuota(), old.GetCpuQuota()),
		CpuShares:          nonZero(wanted.GetCpuShares(), old.GetCpuShares()),
		MemoryLimitInBytes: nonZero(wanted.GetMemoryLimitInBytes(), old.GetMemoryLimitInBytes()),
	}
}

func nonZero(first, second int64) int64 {
	if first != 0 {
		return first
	}
	return second
}

func (r *runtimeService) ContainerStatus(
	ctx context.Context, id string, verbose bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	found, err := r.FakeRuntimeService.ContainerStatus(ctx, id, verbose)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if size := r.sizes[id]; size != nil {
		size.show(time.Now())
		found.Status.Resources = &runtimeapi.ContainerResources{Linux: size.shown}
	}
	return found, nil
}

// PodSandboxStatus gives each pod an address of its own in its node's network, so that a test may listen there.
func (r *runtimeService) PodSandboxStatus(
	ctx context.Context, id string, verbose bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	found, err := r.FakeRuntimeService.PodSandboxStatus(ctx, id, verbose)
	if err != nil {
		return nil, err
	}
	if found.Status.Network != nil {
		digest := fnv.New32a()
		digest.Write([]byte(id))
		sum := digest.Sum32()
		found.Status.Network.Ip = fmt.Sprintf("%s.%d.%d", r.node.podNetwork, sum>>8&255, 1+sum%254)
	}
	return found, nil
}

func (r *runtimeService) ListContainerStats(
	ctx context.Context, filter *runtimeapi.ContainerStatsFilter,
) ([]*runtimeapi.ContainerStats, error) {
	containers, err := r.ListContainers(ctx, &runtimeapi.ContainerFilter{
		Id:            filter.GetId(),
		PodSandboxId:  filter.GetPodSandboxId(),
		LabelSelector: filter.GetLabelSelector(),
	})
	if err != nil {
		return nil, err
	}
	now := time.Now().UnixNano()
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	found := make([]*runtimeapi.ContainerStats, 0, len(containers))
	for _, each := range containers {
		pod := each.Labels["io.kubernetes.pod.namespace"] + "/" + each.Labels["io.kubernetes.pod.name"]
		used := r.node.usages[pod+"/"+each.Metadata.Name]
		age := uint64(max(0, now-each.CreatedAt)) / uint64(time.Second)
		found = append(found, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{
				Id: each.Id, Metadata: each.Metadata, Labels: each.Labels, Annotations: each.Annotations,
			},
			Cpu: &runtimeapi.CpuUsage{
				Timestamp:            now,
				UsageNanoCores:       &runtimeapi.UInt64Value{Value: used.CPUNano},
				UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: age * used.CPUNano},
			},
			Memory: &runtimeapi.MemoryUsage{
				Timestamp:       now,
				WorkingSetBytes: &runtimeapi.UInt64Value{Value: used.MemoryBytes},
				UsageBytes:      &runtimeapi.UInt64Value{Value: used.MemoryBytes},
			},
		})
	}
	return found, nil
}

// imageService has every image.
type imageService struct{ *apitest.FakeImageService }

func newImageService() *imageService {
	fake := apitest.NewFakeImageService()
	fake.SetFakeFilesystemUsage([]*runtimeapi.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes:  &runtimeapi.UInt64Value{Value: 1},
		InodesUsed: &runtimeapi.UInt64Value{Value: 1},
	}})
	return &imageService{fake}
}

func (i *imageService) ImageStatus(
	_ context.Context, wanted *runtimeapi.ImageSpec, _ bool,
) (*runtimeapi.ImageStatusResponse, error) {
	image := &runtimeapi.Image{Id: wanted.Image, RepoTags: []string{wanted.Image}, Size: 1, Spec: wanted}
	return &runtimeapi.ImageStatusResponse{Image: image}, nil
}
