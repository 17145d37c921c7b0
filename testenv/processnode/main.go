// Command processnode runs a Kubernetes node whose pods are local processes, so that real programs run in a test environment
// without containers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/api/resource"

	"sluice.dev/testenv/internal/processnode/container"
	"sluice.dev/testenv/internal/processnode/images"
	"sluice.dev/testenv/internal/processnode/node"
	"sluice.dev/testenv/internal/processnode/sandbox"
)

const usage = `processnode runs a Kubernetes node whose pods are local processes.

  processnode run --dir DIR --kubeconfig FILE --images FILE [flags]   until standard input closes, SIGTERM or SIGINT

  --name NAME    of the Node, process-node by default
  --cpu N        what the Node has for pods: 8,
  --memory N     32Gi
  --gpu N        and no GPU by default

It needs root, and a network namespace without a route out, which is to hold the API server too:
  unshare --net sh -c 'ip link set lo up && exec ...'

It prints one line of JSON when the Node is ready: {"node", "address"}.
`

func main() {
	if len(os.Args) == 2 && os.Args[1] == container.InitCommand {
		os.Exit(container.Init())
	}
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "processnode:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) > 0 && (args[0] == "help" || args[0] == "--help" || args[0] == "-h") {
		fmt.Print(usage)
		return nil
	}
	if len(args) == 0 || args[0] != "run" {
		return errors.New("the only command is run\n\n" + usage)
	}
	options, err := parse(args[1:])
	if err != nil {
		return err
	}
	if err := enterOwnMounts(); err != nil {
		return err
	}
	return run(options, os.Stdin)
}

func parse(args []string) (*node.Options, error) {
	options := &node.Options{}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var table, memory string
	flags.StringVar(&options.Dir, "dir", "", "")
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "")
	flags.StringVar(&table, "images", "", "")
	flags.StringVar(&options.Name, "name", "process-node", "")
	flags.IntVar(&options.CPUs, "cpu", 8, "")
	flags.StringVar(&memory, "memory", "32Gi", "")
	flags.Int64Var(&options.GPUs, "gpu", 0, "")
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("%w\n\n%s", err, usage)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q\n\n%s", flags.Arg(0), usage)
	}
	for name, value := range map[string]string{"--dir": options.Dir, "--kubeconfig": options.Kubeconfig, "--images": table} {
		if value == "" {
			return nil, errors.New(name + " is required")
		}
	}
	if options.CPUs < 1 || options.GPUs < 0 {
		return nil, fmt.Errorf("--cpu %d --gpu %d: a node has at least one CPU, and no negative number of GPUs", options.CPUs, options.GPUs)
	}
	var err error
	if options.Memory, err = resource.ParseQuantity(memory); err != nil || options.Memory.Sign() <= 0 {
		return nil, fmt.Errorf("--memory %s: not a quantity above zero (%v)", memory, err)
	}
	options.Images, err = images.Load(table)
	return options, err
}

// run runs a node until lifeline closes, or a signal comes.
func run(options *node.Options, lifeline io.Reader) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	go func() {
		// An error ends the lifeline just as its end does.
		_, _ = io.Copy(io.Discard, lifeline)
		cancel()
	}()
	started, err := node.Start(ctx, options)
	if err != nil {
		return err
	}
	line, err := json.Marshal(map[string]string{"node": options.Name, "address": sandbox.NodeAddress.String()})
	if err == nil {
		_, err = os.Stdout.Write(append(line, '\n'))
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, started.Stop())
}
