package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/legacyregistry"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	kubeletoptions "k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/metrics/collectors"
	"k8s.io/kubernetes/pkg/kubemark"
	"k8s.io/kubernetes/pkg/volume"
)

const (
	mostPods     = 110
	startTimeout = 10 * time.Second
)

// startKubelet starts the kubelet of a node, and returns once the next one of this process may start.
func startKubelet(n *node, config *rest.Config, o options) error {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	flags, settings, err := kubeletSettings(n, o)
	if err != nil {
		return err
	}
	hollow := kubemark.NewHollowKubelet(
		flags, settings, client, client, newAdvisor(n), newImageService(), newRuntimeService(n),
		&containerManager{ContainerManager: cm.NewStubContainerManager(), node: n},
	)
	parts := hollow.KubeletDeps
	// With this plugin a node becomes ready only after its CSINode object, for which it looks every 5 s.
	parts.VolumePlugins = slices.DeleteFunc(parts.VolumePlugins, func(plugin volume.VolumePlugin) bool {
		return plugin.GetPluginName() == "kubernetes.io/csi"
	})
	parts.ProbeManager = nil // the kubelet makes the real one
	if o.events {
		broadcaster := record.NewBroadcaster()
		broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		source := v1.EventSource{Component: "kubelet", Host: n.name}
		parts.Recorder = broadcaster.NewRecorder(legacyscheme.Scheme, source)
	}
	server := &kubeletoptions.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *settings}
	if err := kubeletapp.RunKubelet(context.Background(), server, parts); err != nil {
		return err
	}
	return freeCollectors()
}

// kubeletSettings are kubemark's, with the node's own directory and without a touch of the machine.
func kubeletSettings(n *node, o options) (*kubeletoptions.KubeletFlags, *kubeletconfig.KubeletConfiguration, error) {
	port := o.kubeletPort + n.index
	flags, settings := kubemark.GetHollowKubeletConfig(
		&kubemark.HollowKubeletOptions{NodeName: n.name, KubeletPort: port, MaxPods: mostPods},
	)
	// Kubemark makes a directory in /tmp, whatever TMPDIR says, and leaves it there.
	if err := os.RemoveAll(flags.RootDirectory); err != nil {
		return nil, nil, fmt.Errorf("kubemark's directory: %w", err)
	}
	flags.RootDirectory = filepath.Join(o.directory, n.name)
	flags.NodeIP = ""
	settings.StaticPodPath = filepath.Join(flags.RootDirectory, "static")
	settings.PodLogsDir = filepath.Join(flags.RootDirectory, "logs")
	for _, each := range []string{settings.StaticPodPath, settings.PodLogsDir} {
		if err := os.MkdirAll(each, 0o755); err != nil {
			return nil, nil, err
		}
	}
	settings.Address = "127.0.0.1"
	settings.EnableServer = o.kubeletPort != 0
	settings.Port, settings.ReadOnlyPort, settings.HealthzPort = int32(port), 0, 0
	settings.MaxOpenFiles = 65536
	settings.CgroupsPerQOS, settings.CgroupRoot, settings.FailCgroupV1 = true, "/", false
	settings.EnforceNodeAllocatable = nil
	settings.MakeIPTablesUtilChains = false // as root the kubelet would write chains into the machine's own iptables
	return flags, settings, nil
}

// freeCollectors lets the next kubelet of this process start. Each kubelet registers two collectors in registries of the whole
// process, at a moment of its own, and panics where it finds them: so they are removed, by collectors that are equal to them.
func freeCollectors() error {
	volumes, logs := collectors.NewVolumeStatsCollector(nil), collectors.NewLogMetricsCollector(nil)
	volumes.Create(nil, volumes)
	logs.Create(nil, logs)
	deadline := time.Now().Add(startTimeout)
	for !prometheus.Unregister(logs) {
		if time.Now().After(deadline) {
			return errors.New("the kubelet did not register its collectors")
		}
		time.Sleep(2 * time.Millisecond)
	}
	prometheus.Unregister(volumes)
	legacyregistry.Registerer().Unregister(volumes)
	legacyregistry.Registerer().Unregister(logs)
	return nil
}
