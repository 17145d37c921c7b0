package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// mostOutput is how much of a command's output is kept, of each stream.
const mostOutput = 16 << 20

// Exec runs a command inside the container until it ends or ctx does, and returns its output and exit code.
func (p *Process) Exec(ctx context.Context, spec *Spec, command []string) (stdout, stderr []byte, code int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread is in the container's namespaces, and ends with this function, after the command.
		runtime.LockOSThread()
		stdout, stderr, code, err = p.execHere(ctx, spec, command)
	}()
	<-done
	return stdout, stderr, code, err
}

func (p *Process) execHere(ctx context.Context, spec *Spec, command []string) (stdout, stderr []byte, code int, err error) {
	if err := enter(p.cmd.Process.Pid); err != nil {
		return nil, nil, 0, fmt.Errorf("enter the container: %w", err)
	}
	dir := spec.WorkingDir
	if dir == "" {
		dir = "/"
	}
	output, complaints := &limited{}, &limited{}
	program, err := lookPath(command[0], spec.Env)
	if err != nil {
		return nil, nil, 0, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Args, cmd.Env, cmd.Dir = command, spec.Env, dir
	cmd.Stdout, cmd.Stderr = output, complaints
	// It ends with the container's PID namespace, and so with the node. (Pdeathsig would kill it at once: it doesn't see its parent.)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: spec.User.credential()}
	cmd.WaitDelay = outputDelay
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil, nil, 0, ctx.Err()
	}
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return output.Bytes(), complaints.Bytes(), exitCode(exited.ProcessState), nil
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return output.Bytes(), complaints.Bytes(), 0, err
}

// enter puts this thread, and what it starts, into the namespaces of a process.
func enter(pid int) error {
	target, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	// Threads share their root directory, which would keep this one from entering a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(target, unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC|unix.CLONE_NEWNET)
}

func (u User) credential() *syscall.Credential {
	groups := make([]uint32, len(u.Groups))
	for i, group := range u.Groups {
		groups[i] = uint32(group)
	}
	return &syscall.Credential{Uid: uint32(u.ID), Gid: uint32(u.Group), Groups: groups}
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(text []byte) (int, error) {
	if room := mostOutput - l.Len(); len(text) > room {
		l.Buffer.Write(text[:room])
		return len(text), nil
	}
	return l.Buffer.Write(text)
}
