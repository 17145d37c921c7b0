// Package supervisor runs the components of one environment as child processes: it starts them in order, says when all
// are ready, and stops them.
package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sluice.dev/testenv/internal/apiclient"
)

const (
	// readyWithin is how long one component may take to become ready.
	readyWithin = 2 * time.Minute
	// pollEvery is how often a component that starts is asked whether it is ready.
	pollEvery = 50 * time.Millisecond
	// stopWithin is how long a component may take to stop before it is killed.
	stopWithin = 3 * time.Second
)

// ErrStopped reports that an environment was stopped before it was ready.
var ErrStopped = errors.New("stopped before it was ready")

// Options say what environment to run.
type Options struct {
	// Dir holds all files of the environment.
	Dir string
	// CRDs are directories whose CustomResourceDefinitions are there before the controllers start.
	CRDs []string
	// Nodes is the number of fake nodes.
	Nodes int
	// NodeCapacity is what each of them has.
	NodeCapacity NodeCapacity
	// TypeCheckPolicies has the types of expressions in admission policies checked.
	TypeCheckPolicies bool
	// Controllers runs kube-controller-manager, kube-scheduler and the nodes; without it, etcd and kube-apiserver are alone.
	Controllers bool
	// Assets is a directory with programs to prefer over the built-in ones; may be empty.
	Assets string
}

// Ready tells where an environment is to be reached.
type Ready struct {
	// Kubeconfig leads through the proxy that stands in for Ray dashboards.
	Kubeconfig string `json:"kubeconfig"`
	// AdminKubeconfig leads straight to the API server.
	AdminKubeconfig string `json:"adminKubeconfig"`
	// Steer is the URL at which tests steer the dashboards.
	Steer string `json:"steer"`
	// Logs is the directory of the components' logs.
	Logs string `json:"logs"`
}

// Environment is a control plane that runs.
type Environment struct {
	options Options
	crds    map[string]json.RawMessage
	layout  layout
	lock    *os.File
	spawner *spawner
	plane   *controlPlane
	client  *apiclient.Client
	// token is the administrator's.
	token string
	front front
	// mutex guards processes.
	mutex     sync.Mutex
	processes []*process
	// failed receives the first component that ends by itself.
	failed chan *process
}

// Start runs a new environment and returns once all of it is ready. On an error nothing of it is left running.
func Start(ctx context.Context, options Options) (*Environment, *Ready, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, nil, err
	}
	crds, err := readCRDs(options.CRDs)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	e := &Environment{
		options: options, crds: crds, layout: layout{dir}, spawner: newSpawner(), failed: make(chan *process, 1),
	}
	if e.lock, err = e.layout.takeLock(); err != nil {
		return nil, nil, err
	}
	ready, err := e.start(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, e.Stop())
	}
	return e, ready, nil
}

func (e *Environment) start(ctx context.Context) (*Ready, error) {
	if err := e.writeFiles(); err != nil {
		return nil, err
	}
	if err := e.startAPI(ctx); err != nil {
		return nil, err
	}
	if err := e.installCRDs(ctx); err != nil {
		return nil, err
	}
	if e.options.Controllers {
		if err := e.startControllers(ctx); err != nil {
			return nil, err
		}
		if err := e.createNodes(ctx); err != nil {
			return nil, err
		}
		if err := e.startNodes(ctx); err != nil {
			return nil, err
		}
	}
	proxyURL, steerURL, err := e.startFront()
	if err != nil {
		return nil, err
	}
	if err := writeKubeconfig(e.layout.kubeconfig(), proxyURL, e.token, e.plane.certs.ca); err != nil {
		return nil, err
	}
	return &Ready{
		Kubeconfig:      e.layout.kubeconfig(),
		AdminKubeconfig: e.layout.adminKubeconfig(),
		Steer:           steerURL,
		Logs:            e.layout.logs(),
	}, nil
}

// Wait returns when ctx is done, or with a *ComponentError when a component has ended by itself.
func (e *Environment) Wait(ctx context.Context) error {
	select {
	case p := <-e.failed:
		return p.ended()
	case <-ctx.Done():
		return nil
	}
}

// Stop stops all components, the last started first, and removes the data; the logs stay.
func (e *Environment) Stop() error {
	err := e.front.stop()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stopProcesses()
	return errors.Join(err, e.layout.removeData(), e.lock.Close())
}

// stopProcesses stops all components, the last started first. The caller holds the mutex.
func (e *Environment) stopProcesses() {
	for i := len(e.processes) - 1; i >= 0; i-- {
		e.processes[i].stop(stopWithin)
	}
	e.processes = nil
}

func (e *Environment) writeFiles() error {
	if err := e.layout.prepare(); err != nil {
		return err
	}
	address := loopback(os.Getpid())
	ports, err := freePorts(address, 5)
	if err != nil {
		return err
	}
	serving := []net.IP{address, net.IPv4(127, 0, 0, 1), net.ParseIP(advertised), net.ParseIP(apiService)}
	certs, err := writeCertificates(e.layout.certs(), serving)
	if err != nil {
		return err
	}
	e.plane = &controlPlane{
		layout: e.layout, certs: certs, address: address, assets: e.options.Assets,
		typeCheckPolicies: e.options.TypeCheckPolicies, controllers: e.options.Controllers,
		etcdPort: ports[0], etcdPeerPort: ports[1], apiserverPort: ports[2], controllerManagerPort: ports[3], schedulerPort: ports[4],
	}
	e.token = rand.Text()
	if err := os.WriteFile(e.layout.tokens(), []byte(e.token+",admin,admin,\"system:masters\"\n"), 0o600); err != nil {
		return err
	}
	server := e.plane.apiserverURL()
	if e.client, err = apiclient.New(server, e.token, certs.ca); err != nil {
		return err
	}
	return writeKubeconfig(e.layout.adminKubeconfig(), server, e.token, certs.ca)
}

// startAPI starts etcd and the API server, and waits until the API server is ready.
func (e *Environment) startAPI(ctx context.Context) error {
	if _, err := e.run("etcd", e.plane.etcdArgs()); err != nil {
		return err
	}
	apiserver, err := e.run("kube-apiserver", e.plane.apiserverArgs())
	if err != nil {
		return err
	}
	return e.await(ctx, apiserver, e.isAPIReady)
}

func (e *Environment) isAPIReady(ctx context.Context) (bool, error) {
	err := e.client.Do(ctx, "GET", "/readyz", nil, new(string))
	return err == nil, err
}

// installCRDs creates the CRDs and waits until all are served.
func (e *Environment) installCRDs(ctx context.Context) error {
	for name, crd := range e.crds {
		if err := e.client.Do(ctx, "POST", crdPath, crd, nil); err != nil {
			return fmt.Errorf("install the CRD %s: %w", name, err)
		}
	}
	for name := range e.crds {
		if err := e.awaitAny(ctx, "the CRD "+name+" to be served", func(ctx context.Context) (bool, error) {
			return established(ctx, e.client, name)
		}); err != nil {
			return err
		}
	}
	return nil
}

// startControllers starts the controllers and the scheduler, and waits until pods can be created.
func (e *Environment) startControllers(ctx context.Context) error {
	manager, err := e.run("kube-controller-manager", e.plane.controllerManagerArgs())
	if err != nil {
		return err
	}
	scheduler, err := e.run("kube-scheduler", e.plane.schedulerArgs())
	if err != nil {
		return err
	}
	for process, port := range map[*process]int{manager: e.plane.controllerManagerPort, scheduler: e.plane.schedulerPort} {
		if err := e.await(ctx, process, healthz(e.plane.url("https", port))); err != nil {
			return err
		}
	}
	return e.awaitAny(ctx, "the service account default/default", func(ctx context.Context) (bool, error) {
		err := e.client.Do(ctx, "GET", "/api/v1/namespaces/default/serviceaccounts/default", nil, nil)
		return err == nil, err
	})
}

// run starts a component and watches over it.
func (e *Environment) run(name string, args []string) (*process, error) {
	program, leading, err := e.plane.program(name)
	if err != nil {
		return nil, err
	}
	return e.runProgram(name, program, append(leading, args...))
}

func (e *Environment) runProgram(name, program string, args []string) (*process, error) {
	started, err := e.spawner.start(name, e.layout.logs(), program, args)
	if err != nil {
		return nil, err
	}
	e.processes = append(e.processes, started)
	go func() {
		<-started.exited
		if started.stopping.Load() {
			return
		}
		select {
		case e.failed <- started:
		default: // Only the first matters: it takes the others along.
		}
	}()
	return started, nil
}

// await waits until a component is ready. A failure is the component's, with the end of its log.
func (e *Environment) await(ctx context.Context, p *process, ready func(context.Context) (bool, error)) error {
	err := e.awaitAny(ctx, p.name+" to be ready", ready)
	var known *ComponentError
	if err == nil || errors.As(err, &known) || errors.Is(err, ErrStopped) {
		return err
	}
	return p.failure(err.Error())
}

// awaitAny waits until ready says so; it gives up when any component ends, or when the time is over.
func (e *Environment) awaitAny(ctx context.Context, what string, ready func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	var last error
	for {
		var done bool
		if done, last = ready(ctx); done {
			return nil
		}
		select {
		case p := <-e.failed:
			return p.ended()
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ErrStopped
			}
			return fmt.Errorf("waited for %s: %w; last answer: %v", what, ctx.Err(), last)
		case <-time.After(pollEvery):
		}
	}
}

// Line is the one line of JSON that tells others about a ready environment.
func (r *Ready) Line() ([]byte, error) {
	text, err := json.Marshal(r)
	return append(text, '\n'), err
}
