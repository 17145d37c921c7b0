package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ownMounts is set in the environment once this process is in a mount namespace of its own.
const ownMounts = "PROCESSNODE_OWN_MOUNTS"

// enterOwnMounts runs this program again, in the same process, in a private mount namespace: no other process sees the volumes
// of pods, and they are removed with it, however it ends.
func enterOwnMounts() error {
	if os.Getenv(ownMounts) != "" {
		return os.Unsetenv(ownMounts)
	}
	if os.Geteuid() != 0 {
		return errors.New("not root: namespaces, bridges and mounts need it. Run it with sudo, or as root of a virtual machine")
	}
	// The namespace is this thread's, and so that of the program which it becomes.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return missing(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return missing(err)
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s again: %w", own, unix.Exec(own, os.Args, append(os.Environ(), ownMounts+"=1")))
}

func missing(err error) error {
	return fmt.Errorf("no namespaces can be made: %w. In a container it takes CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)", err)
}
