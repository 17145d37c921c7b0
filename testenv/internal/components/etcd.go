package components

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// runEtcd serves one etcd member until SIGTERM or SIGINT. It takes the few flags of etcd that the environment uses, under
// etcd's own names, so that a real etcd binary can stand in its place.
func runEtcd(args []string) int {
	config := embed.NewConfig()
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	clientURL := flags.String("listen-client-urls", "", "the URL that clients reach it at")
	peerURL := flags.String("listen-peer-urls", "", "the URL that peers would reach it at")
	flags.String("advertise-client-urls", "", "the same as --listen-client-urls")
	flags.String("initial-advertise-peer-urls", "", "the same as --listen-peer-urls")
	flags.String("initial-cluster", "", "follows from --listen-peer-urls")
	flags.StringVar(&config.Dir, "data-dir", "", "where the data is kept")
	flags.BoolVar(&config.UnsafeNoFsync, "unsafe-no-fsync", false, "leave writes to the page cache")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	client, err := url.Parse(*clientURL)
	if err != nil {
		return etcdFailed(err)
	}
	peer, err := url.Parse(*peerURL)
	if err != nil {
		return etcdFailed(err)
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogLevel = "warn"
	// Left at zero, which NewConfig does, it warns of every request.
	config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration

	server, err := embed.StartEtcd(config)
	if err != nil {
		return etcdFailed(err)
	}
	defer server.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return 0
	case err := <-server.Err():
		return etcdFailed(err)
	}
}

func etcdFailed(err error) int {
	fmt.Fprintln(os.Stderr, "etcd:", err)
	return 1
}
