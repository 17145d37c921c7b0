// Command testenv runs a Kubernetes control plane for Sluice's tests: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, all in this one program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"sluice.dev/testenv/internal/components"
	"sluice.dev/testenv/internal/supervisor"
)

const usage = `testenv runs a Kubernetes control plane for tests.

  testenv run   --dir DIR [flags]   until standard input closes, SIGTERM or SIGINT
  testenv start --dir DIR [flags]   in the background
  testenv stop  --dir DIR           what "start" or "run" started, and remove its files

  --crds DIR        install the CustomResourceDefinitions of DIR before the controllers start (repeatable)
  --nodes N         the number of fake nodes, 4 by default; each has
  --node-cpu N      64
  --node-memory N   256Gi
  --node-gpu N      8
  --type-check-policies  report type errors of admission policies in their statuses
  --controllers=false    run etcd and kube-apiserver alone; implies --nodes 0

"run" and "start" print one line of JSON when all is ready: {"kubeconfig", "adminKubeconfig", "steer", "logs"}.
`

// directories is a flag that may be given several times.
type directories []string

func (d *directories) String() string     { return fmt.Sprint(*d) }
func (d *directories) Set(v string) error { *d = append(*d, v); return nil }

func main() {
	if len(os.Args) > 2 && os.Args[1] == "component" {
		os.Exit(components.Run(os.Args[2], os.Args[3:]))
	}
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) == 0 {
		return errors.New("no command\n\n" + usage)
	}
	if args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		fmt.Print(usage)
		return nil
	}
	options := supervisor.Options{Assets: os.Getenv("KUBEBUILDER_ASSETS")}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&options.Dir, "dir", "", "")
	if args[0] != "stop" {
		flags.Var((*directories)(&options.CRDs), "crds", "")
		flags.IntVar(&options.Nodes, "nodes", 4, "")
		flags.StringVar(&options.NodeCapacity.CPU, "node-cpu", "64", "")
		flags.StringVar(&options.NodeCapacity.Memory, "node-memory", "256Gi", "")
		flags.StringVar(&options.NodeCapacity.GPU, "node-gpu", "8", "")
		flags.BoolVar(&options.TypeCheckPolicies, "type-check-policies", false, "")
		flags.BoolVar(&options.Controllers, "controllers", true, "")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w\n\n%s", err, usage)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q\n\n%s", flags.Arg(0), usage)
	}
	if options.Dir == "" {
		return errors.New("--dir is required")
	}
	if options.Nodes < 0 {
		return fmt.Errorf("--nodes %d: must not be negative", options.Nodes)
	}
	switch args[0] {
	case "run":
		return run(options, os.Stdin)
	case supervisor.BackgroundCommand:
		return run(options, nil)
	case "start":
		return supervisor.StartInBackground(options.Dir, args[1:], os.Stdout)
	case "stop":
		return supervisor.StopInBackground(options.Dir)
	default:
		return fmt.Errorf("no command is called %q\n\n%s", args[0], usage)
	}
}

// run runs an environment until lifeline closes (if there is one), a signal comes, or a component ends.
func run(options supervisor.Options, lifeline io.Reader) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if lifeline != nil {
		go func() {
			// An error ends the lifeline just as its end does.
			_, _ = io.Copy(io.Discard, lifeline)
			cancel()
		}()
	}
	environment, ready, err := supervisor.Start(ctx, options)
	if err != nil {
		return err
	}
	line, err := ready.Line()
	if err == nil {
		_, err = os.Stdout.Write(line)
	}
	if err == nil {
		err = environment.Wait(ctx)
	}
	return errors.Join(err, environment.Stop())
}
