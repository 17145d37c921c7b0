// Package components holds the control plane's programs. One process runs exactly one of them: building two of their
// commands in one process installs the signal handler twice, which panics.
package components

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Run runs the named component with its command-line arguments until it ends, and returns its exit code.
func Run(name string, args []string) int {
	// The commands read os.Args themselves when no arguments are set on them.
	os.Args = append([]string{name}, args...)
	switch name {
	case "etcd":
		return runEtcd(args)
	case "kube-apiserver":
		return cli.Run(kubeapiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		return cli.Run(kubecontrollermanager.NewControllerManagerCommand())
	case "kube-scheduler":
		return cli.Run(kubescheduler.NewSchedulerCommand())
	default:
		fmt.Fprintf(os.Stderr, "no component is called %q\n", name)
		return 2
	}
}
