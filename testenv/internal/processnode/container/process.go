package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startFailedCode is the exit code of a container whose program could not be run, as container runtimes have it.
const startFailedCode = 128

// Starter starts every container from one operating-system thread that lives as long as the node: the kernel kills a
// container when the thread that started it ends, not when the node does.
type Starter struct {
	requests chan func()
}

// NewStarter makes a starter.
func NewStarter() *Starter {
	s := &Starter{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for start := range s.requests {
			start()
		}
	}()
	return s
}

// Process is a container that was started.
type Process struct {
	cmd *exec.Cmd
	// Exited is closed once it has ended, with all that it had started, and its output is in the log; Code is set before.
	Exited chan struct{}
	Code   int
}

// Start runs a container in a network namespace, with its output in the log. An error means that its command does not run.
func (s *Starter) Start(spec *Spec, namespace *os.File, log *Log) (*Process, error) {
	if err := makeLayers(spec.Dir); err != nil {
		return nil, err
	}
	pipes, err := openPipes(4)
	if err != nil {
		return nil, err
	}
	specs, reports, output, complaints := pipes[0], pipes[1], pipes[2], pipes[3]
	cmd := exec.Command("/proc/self/exe", InitCommand)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = output.write, complaints.write
	cmd.ExtraFiles = []*os.File{specs.read, namespace, reports.write}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL, Setsid: true,
	}
	started := make(chan error)
	s.requests <- func() { started <- cmd.Start() }
	err = <-started
	for _, file := range []*os.File{specs.read, reports.write, output.write, complaints.write} {
		file.Close()
	}
	if err != nil {
		closeAll(specs.write, reports.read, output.read, complaints.read)
		return nil, fmt.Errorf("start a process in namespaces of its own: %w", err)
	}
	process := &Process{cmd: cmd, Exited: make(chan struct{})}
	go process.watch(log, output.read, complaints.read)
	return process, process.awaitExec(spec, specs.write, reports.read)
}

// awaitExec hands the spec over, and returns when the command runs, or else why it doesn't.
func (p *Process) awaitExec(spec *Spec, specs, reports *os.File) error {
	defer reports.Close()
	// What keeps the process from reading it is in its report.
	_ = json.NewEncoder(specs).Encode(spec)
	specs.Close()
	report, err := io.ReadAll(reports)
	if err == nil && len(report) > 0 {
		err = errors.New(string(report))
	}
	if err != nil {
		<-p.Exited
	}
	return err
}

// watch copies the output, and waits for the end of it and of the process.
func (p *Process) watch(log *Log, output, complaints *os.File) {
	var copying sync.WaitGroup
	copying.Go(func() { log.Copy("stdout", output) })
	copying.Go(func() { log.Copy("stderr", complaints) })
	// How it ended is in its state; an error has nothing to add.
	_ = p.cmd.Wait()
	copying.Wait()
	closeAll(output, complaints)
	log.Close()
	p.Code = exitCode(p.cmd.ProcessState)
	close(p.Exited)
}

// exitCode returns the exit code that a shell would report.
func exitCode(state *os.ProcessState) int {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// Stop ends the container: politely first, by SIGKILL after the grace time, which ends all processes of its PID namespace.
func (p *Process) Stop(signal syscall.Signal, grace time.Duration) {
	if grace > 0 {
		// An error means that it has ended already.
		_ = p.cmd.Process.Signal(signal)
		select {
		case <-p.Exited:
			return
		case <-time.After(grace):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.Exited
}

func makeLayers(dir string) error {
	upper, work, root, tmp := layers(dir)
	for _, path := range []string{upper, work, root, tmp} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make the directories of a container: %w", err)
		}
	}
	return os.Chmod(tmp, 0o777|os.ModeSticky)
}

type pipe struct{ read, write *os.File }

func openPipes(count int) ([]pipe, error) {
	var pipes []pipe
	for range count {
		read, write, err := os.Pipe()
		if err != nil {
			for _, opened := range pipes {
				closeAll(opened.read, opened.write)
			}
			return nil, fmt.Errorf("open a pipe to a container: %w", err)
		}
		pipes = append(pipes, pipe{read, write})
	}
	return pipes, nil
}

// closeAll closes pipes, which have nothing to lose by it.
func closeAll(files ...*os.File) {
	for _, file := range files {
		file.Close()
	}
}
