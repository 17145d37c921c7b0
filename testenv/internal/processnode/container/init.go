package container

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// InitCommand is the hidden command by which the node runs itself as a container's first process.
const InitCommand = "container"

// The files that the node hands to it.
const (
	specFile = 3 + iota
	namespaceFile
	reportFile
)

// Init turns this process, in separate namespaces, into the one of the node's spec. It returns only when that fails, after
// reporting the error to the node.
func Init() int {
	runtime.LockOSThread()
	for _, file := range []int{specFile, namespaceFile, reportFile} {
		unix.CloseOnExec(file)
	}
	err := become()
	fmt.Fprint(os.NewFile(reportFile, "report"), err)
	return startFailedCode
}

func become() error {
	var spec Spec
	if err := json.NewDecoder(os.NewFile(specFile, "spec")).Decode(&spec); err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	if err := unix.Setns(namespaceFile, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the pod's network namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("set the hostname %q: %w", spec.Hostname, err)
	}
	unix.Umask(0o022)
	if err := makeRoot(&spec); err != nil {
		return err
	}
	if spec.WorkingDir != "" {
		if err := os.MkdirAll(spec.WorkingDir, 0o755); err != nil {
			return fmt.Errorf("make the working directory: %w", err)
		}
		if err := os.Chdir(spec.WorkingDir); err != nil {
			return fmt.Errorf("enter the working directory: %w", err)
		}
	}
	if err := becomeUser(&spec); err != nil {
		return err
	}
	return execute(spec.Command, spec.Env)
}

func becomeUser(spec *Spec) error {
	if spec.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("give up new privileges: %w", err)
		}
	}
	if err := syscall.Setgroups(spec.User.Groups); err != nil {
		return fmt.Errorf("set the groups %v: %w", spec.User.Groups, err)
	}
	if err := syscall.Setgid(spec.User.Group); err != nil {
		return fmt.Errorf("set the group %d: %w", spec.User.Group, err)
	}
	if err := syscall.Setuid(spec.User.ID); err != nil {
		return fmt.Errorf("set the user %d: %w", spec.User.ID, err)
	}
	// The kernel forgets it when the user changes.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the node: %w", err)
	}
	return nil
}

// execute runs a command in this process's place.
func execute(command, env []string) error {
	program, err := lookPath(command[0], env)
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", program, unix.Exec(program, command, env))
}
