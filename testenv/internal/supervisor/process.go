package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// logTailLines is how much of a component's log a failure shows.
const logTailLines = 25

// lazyGC has a component collect garbage at five times what is alive, not at twice: most of what a control plane does in its short
// life is to start, and that makes much that lives on.
const lazyGC = "GOGC=400"

// process is one component that runs as a child process.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	// stopping is set once the supervisor stops it.
	stopping atomic.Bool
	// exited is closed once the process has ended; err is set before.
	exited chan struct{}
	err    error
}

// spawner starts every child from one operating-system thread that lives as long as the supervisor: the kernel sends a
// child its parent-death signal when the thread that started it ends, not when the process does.
type spawner struct {
	requests chan func()
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for start := range s.requests {
			start()
		}
	}()
	return s
}

// start runs a program as a child that is killed if the supervisor dies, with its output in logDir/name.log.
func (s *spawner) start(name, logDir, program string, args []string) (*process, error) {
	path := filepath.Join(logDir, name+".log")
	output, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer output.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = append(os.Environ(), lazyGC)
	// A group of its own: Ctrl-C reaches the supervisor only, which then stops the components in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	s.requests <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, log: path, cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// stop ends the process: politely first, by SIGKILL after the grace time.
func (p *process) stop(grace time.Duration) {
	p.stopping.Store(true)
	// An error means that it has ended already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return
	case <-time.After(grace):
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// ComponentError says which component failed, how, and what it logged last.
type ComponentError struct {
	Component, What, Log, Tail string
}

func (e *ComponentError) Error() string {
	return fmt.Sprintf("%s: %s\n--- the end of %s ---\n%s", e.Component, e.What, e.Log, e.Tail)
}

// failure says that the component failed, and shows the end of its log.
func (p *process) failure(what string) *ComponentError {
	return &ComponentError{Component: p.name, What: what, Log: p.log, Tail: tail(p.log, logTailLines)}
}

// ended is the failure of a component that ended by itself.
func (p *process) ended() *ComponentError {
	return p.failure(fmt.Sprintf("ended by itself (%v)", p.err))
}

// tail returns the last lines of a file, as far as it can be read.
func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
