package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	kubeletoptions "k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
	"k8s.io/kubernetes/pkg/volume/projected"
	"k8s.io/kubernetes/pkg/volume/secret"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"

	"sluice.dev/testenv/internal/processnode/dns"
	"sluice.dev/testenv/internal/processnode/runtime"
	"sluice.dev/testenv/internal/processnode/sandbox"
)

// Label is on every process node: pods that are to run on one select it, and kwok leaves its nodes alone.
const Label = "testenv.sluice.dev/process-node"

// startKubelet starts the real kubelet on our runtime. It ends with this process only, and ends it if it fails.
func startKubelet(ctx context.Context, options *Options, config *rest.Config, service *runtime.Service) error {
	flags, configuration, err := kubeletSettings(options)
	if err != nil {
		return err
	}
	deps, err := kubeletDependencies(options, config, service)
	if err != nil {
		return err
	}
	kubelet.ContainerLogsDir = filepath.Join(flags.RootDirectory, "log-links")
	server := &kubeletoptions.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *configuration}
	if err := kubeletapp.RunKubelet(ctx, server, deps); err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	return nil
}

func kubeletSettings(options *Options) (*kubeletoptions.KubeletFlags, *kubeletconfig.KubeletConfiguration, error) {
	flags := kubeletoptions.NewKubeletFlags()
	flags.RootDirectory = filepath.Join(options.Dir, "kubelet")
	flags.CertDirectory = filepath.Join(options.Dir, "kubelet", "pki")
	flags.HostnameOverride = options.Name
	flags.NodeIP = sandbox.NodeAddress.String()
	flags.NodeLabels = map[string]string{Label: "true"}
	configuration, err := kubeletoptions.NewKubeletConfiguration()
	if err != nil {
		return nil, nil, fmt.Errorf("make the kubelet's configuration: %w", err)
	}
	configuration.Address = sandbox.NodeAddress.String()
	configuration.PodLogsDir = filepath.Join(options.Dir, "logs")
	configuration.ClusterDNS = []string{sandbox.NodeAddress.String()}
	configuration.ClusterDomain = dns.Domain
	// Names that aren't the cluster's lead nowhere.
	configuration.ResolverConfig = ""
	// There are no cgroups, and nothing is measured that would be worth an eviction.
	configuration.CgroupsPerQOS, configuration.EnforceNodeAllocatable = false, nil
	configuration.EvictionHard = map[string]string{}
	configuration.LocalStorageCapacityIsolation = false
	configuration.ImageGCHighThresholdPercent = 100
	configuration.MakeIPTablesUtilChains = false
	configuration.EnableControllerAttachDetach = false
	// A test waits for what the node reports.
	configuration.NodeStatusUpdateFrequency = metav1.Duration{Duration: 5 * time.Second}
	configuration.SyncFrequency = metav1.Duration{Duration: 10 * time.Second}
	return flags, configuration, os.MkdirAll(configuration.PodLogsDir, 0o700)
}

func kubeletDependencies(options *Options, config *rest.Config, service *runtime.Service) (*kubelet.Dependencies, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	certificate, key, err := certutil.GenerateSelfSignedCertKey(options.Name, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("make the kubelet's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's certificate: %w", err)
	}
	var plugins []volume.VolumePlugin
	for _, probe := range []func() []volume.VolumePlugin{
		emptydir.ProbeVolumePlugins, configmap.ProbeVolumePlugins, secret.ProbeVolumePlugins,
		projected.ProbeVolumePlugins, downwardapi.ProbeVolumePlugins,
	} {
		plugins = append(plugins, probe()...)
	}
	mounter := mount.New("")
	return &kubelet.Dependencies{
		KubeClient: client, HeartbeatClient: client, EventClient: client.CoreV1(),
		RemoteRuntimeService: service, RemoteImageService: runtime.Images{Table: options.Images},
		CAdvisorInterface: machine{options.Name, options.CPUs, uint64(options.Memory.Value())},
		ContainerManager:  newContainerManager(options.GPUs),
		OSInterface:       system{}, Mounter: mounter, Subpather: subpath.New(mounter), HostUtil: hostutil.NewHostUtil(),
		OOMAdjuster: oom.NewFakeOOMAdjuster(), VolumePlugins: plugins,
		TLSConfig:                 &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		TracerProvider:            noop.NewTracerProvider(),
		PodStartupLatencyTracker:  kubeletutil.NewPodStartupLatencyTracker(),
		NodeStartupLatencyTracker: kubeletutil.NewNodeStartupLatencyTracker(),
	}, nil
}
